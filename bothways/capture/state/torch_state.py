"""PyTorch's interpreter-wide state as captured code has changed it so far: contexts, settings, devices, hooks."""

from __future__ import annotations

from typing import Any

import torch.fx


class CapturedTorchState:
    """What is open or changed at this point of the captured program."""

    def __init__(self, default_devices: list[Any] | None = None) -> None:
        self.open_contexts: list[Any] = []  # entered by the program and not left yet
        self.changed_settings: list[Any] = []  # as they were
        self.default_devices = default_devices or []  # where tensors are made, the caller's default device first
        self.grad_inside = True  # the grad mode inside of the contexts that the program leaves open
        self.grad_after: bool | None = None  # and the one that it leaves behind, if it is another than at its beginning
        # Hooks for saved tensors: the nodes that put them there, and with what messages they were disabled.
        self.saved_tensors_hooks: list[torch.fx.Node] = []
        self.hooks_disabled: list[str] = []

    def fork(self) -> CapturedTorchState:
        """The same default devices, for code that is only looked at."""
        return CapturedTorchState(list(self.default_devices))

    def follow(self, other: CapturedTorchState) -> None:
        """Begin where the contexts of ``other`` are open."""
        self.open_contexts = list(other.open_contexts)

    def enter(self, context: Any) -> None:
        self.open_contexts.append(context)

    @property
    def is_as_at_entry(self) -> bool:
        """Whether PyTorch's settings are the caller's: filters of warnings are none of them."""
        return not self.changed_settings and all(
            getattr(context, "leaves_settings_alone", False) for context in self.open_contexts
        )

    def leave(self, context: Any) -> None:
        self.open_contexts.remove(context)

    def change_setting(self, before: Any) -> None:
        """A setting is changed; ``before.leave()`` makes it what it was."""
        self.changed_settings.append(before)

    def enter_device(self, device: Any) -> None:
        self.default_devices.append(device)

    def leave_device(self) -> None:
        self.default_devices.pop()

    def end(self, grad_inside: bool, grad_after: bool | None) -> None:
        """The program ends here, with these grad modes."""
        self.grad_inside, self.grad_after = grad_inside, grad_after

    def push_hooks(self, node: torch.fx.Node) -> None:
        self.saved_tensors_hooks.append(node)

    def pop_hooks(self) -> torch.fx.Node:
        return self.saved_tensors_hooks.pop()

    def disable_hooks(self, message: str) -> None:
        self.hooks_disabled.append(message)

    def enable_hooks(self) -> None:
        self.hooks_disabled.pop()
