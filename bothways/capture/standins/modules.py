"""How ``nn.Module`` calls ``forward`` when hooks are registered."""

from __future__ import annotations

from typing import Any


def call_with_hooks(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], forward: Any, backward: Any) -> Any:
    """``forward`` tells the module's hooks; ``backward`` looks after its backward hooks, None when there are none."""
    for takes_keywords, hook in forward.before():
        if takes_keywords:
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
    for takes_keywords, hook in forward.after():
        if takes_keywords:
            changed = hook(module, args, kwargs, result)
        else:
            changed = hook(module, args, result)
        if changed is not None:
            result = changed
    return result if backward is None else backward.leave(args, result)


def by_number(hooks: dict[int, Any], with_keywords: dict[int, bool]) -> tuple[tuple[bool, Any], ...]:
    """The hooks of a dictionary, each with whether it takes keywords."""
    return tuple([(number in with_keywords, hook) for number, hook in hooks.items()])
