"""How ``nn.Module`` calls ``forward`` when hooks are registered."""

from __future__ import annotations

from typing import Any


def call_with_hooks(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], backward: Any) -> Any:
    """``backward`` looks after the module's backward hooks; None when there are none."""
    for hook_id, hook in tuple(module._forward_pre_hooks.items()):
        if hook_id in module._forward_pre_hooks_with_kwargs:
            changed = hook(module, args, kwargs)
            if changed is not None:
                args, kwargs = changed
        else:
            changed = hook(module, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
    if backward is not None:
        args = backward.enter(args)
    result = module.forward(*args, **kwargs)
    for hook_id, hook in tuple(module._forward_hooks.items()):
        if hook_id in module._forward_hooks_with_kwargs:
            changed = hook(module, args, kwargs, result)
        else:
            changed = hook(module, args, result)
        if changed is not None:
            result = changed
    return result if backward is None else backward.leave(args, result)
