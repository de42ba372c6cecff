"""What people can do about a break, by its reason code, and finer where the code alone says too little.

A finer row has words of the reason it is for. A hint says what helps, never what cannot: the program for each is in
``tests/api/test_hints.py``.
"""

from __future__ import annotations

import re

# Reason code -> what the user can do about it. The codes are stable: people filter logs by them.
HINTS: dict[str, str] = {
    "call_unknown": (
        "Call it outside the compiled function, or mark it with bothways.allow_in_graph if it only does tensor work."
    ),
    "debugger": "A person may look at the frame from here on, so the rest of it is plain Python; remove the call.",
    "call_disabled": "The callee is marked with bothways.disable; move the call out of the compiled function.",
    "graph_break": "Remove the bothways.graph_break() call.",
    "tensor_branch": (
        "Decide with torch.where; or return the tensor and decide outside; or compute the condition from shapes and "
        "Python values instead of tensor data."
    ),
    "tensor_value": (
        "Keep the value a tensor, operations broadcast; or set config.numbers_from_data, which makes such a number one "
        "of the graph's."
    ),
    "dynamic_shape": (
        "Keep the shape and make neutral what does not count (torch.where); or set config.sizes_from_data, if it is a "
        "size that depends on data."
    ),
    "attribute_unknown": "Read the attribute outside the compiled function and pass it in.",
    "operator_unknown": "Do this operation outside the compiled function.",
    "opcode_unknown": "Move this statement out of the compiled function.",
    "class_definition": "Define the class at module level.",
    "import": "Import at module level.",
    "generator_escapes": "Consume the generator inside the function, or return a list.",
    "async": "Compile the synchronous parts; coroutines run as plain Python.",
    "autograd_function": "Keep side effects out of forward, and give apply tensors and constants only.",
    "object_in_graph": "Change the object outside the compiled function, or give apply its parts instead.",
    "hook": "Register the hook outside the compiled function.",
    "closure": (
        "There is nothing to do: the closure is compiled, and the optimizer calls it as often as it decides to."
    ),
    "backward": (
        "Compute inside what the backward comes to, or call it outside: it is compiled all the same. Here it runs on "
        "PyTorch's engine between two graphs."
    ),
    "transform": (
        "Give tensors to the function of torch.func.grad or vmap as arguments, and take them back as results; keep "
        "hooks, custom functions, random numbers and questions about gradients out of it."
    ),
    "lazy_module": "The module finds out its sizes in this call, as plain Python; the next call is captured.",
    "lazy_state": "The optimizer makes its state in this step, as plain Python; the next step is captured.",
    "op_unknown": (
        "If the operation is your own, tell PyTorch what it returns (torch.library.register_fake); or call it outside."
    ),
    "op_failed": (
        "If it raises uncompiled as well, give it arguments that fit; if it does not, call it outside the compiled "
        "function."
    ),
    "tensor_subclass": "Pass a plain torch.Tensor or nn.Parameter.",
    "builtin_replaced": "Put the function back before calling the compiled function, or do that part outside.",
    "torch_mode": "Leave the mode or the transform before calling the compiled function, or do that part outside.",
    "mutation_unknown": "Change the object outside the compiled function.",
    "object_unknown": "Pass the parts of the object that are needed instead of the object.",
    "hash_unknown": "Use keys and set elements that are numbers, strings or tuples of them.",
    "context_manager": "Enter and leave the context manager at the same place, with no break in between.",
    "training_loop": (
        "Nothing has to be done: each turn is a call of one program. To have no break at all, compile the body of the "
        "loop."
    ),
    "too_long": "Do long loops of plain Python outside the compiled function.",
    "too_deep": "Make the recursion shallower, or a loop; or raise config.inline_depth_limit.",
    "exception_escapes": "The function raises; it runs as plain Python so that the exception is the user's own.",
    "escape": "The object cannot be rebuilt after the graph ran; return its parts instead.",
    "loop_state": "Break before or after the comprehension; or write it as a loop.",
    "value_changes": "Do this outside the compiled function; what is another one at each call is no constant.",
    "unstable_guard": "What the guard reads gives another answer each time; read it outside the compiled function.",
    "internal": "This is a bug in bothways; the function was run as plain Python.",
}

DRAW = "Draw the number outside the compiled function and pass it in"
NUMPY = "NumPy runs as plain Python: use torch's own functions, or do that part outside the compiled function."
LAYOUT = "Sparse, quantized and nested tensors run as plain Python; make and use them outside the compiled function."

# Reason code, words of the reason -> what to do about that. The first row that fits counts.
FINER: tuple[tuple[str, str, str], ...] = (
    ("value_changes", r"^(each turn|after a break)", "Go over the elements themselves instead of their numbers."),
    ("call_unknown", r"^print\(\)", "Print outside the compiled function; or log, which is captured with constants."),
    ("call_unknown", r"^(a message is logged|a warning is given)", "Log and warn with constants, or do it outside."),
    ("call_unknown", r"^logging\.", "Get loggers at module level; what they say is captured with constants."),
    ("call_unknown", r"'torch\.equal'", "(x == y).all() says the same and stays a tensor."),
    ("call_unknown", r"^torch\.(nested|sparse|ao)\.", LAYOUT),
    ("call_unknown", r"^random\.|^random numbers", f"{DRAW}; random(), randint() and the like are captured."),
    ("call_unknown", r"numpy\.", NUMPY),
    ("call_unknown", r"(locals|globals|vars|dir|eval|exec|compile)\(|sys\._getframe", (
        "Keep what looks at frames, or makes code, out of the compiled function."
    )),
    ("call_unknown", r"^torch\.(func|_functorch)\.", (
        "Of torch.func, linearize and functionalize run as plain Python, with graphs before and after."
    )),
    ("call_unknown", r"\bseed\b|manual_seed|rng_state", "Seed outside the compiled function."),
    ("call_unknown", r"^(a tensor operation cannot take|a graph cannot hold)", (
        "Give operations tensors and constants: take what is needed out of the object before."
    )),
    ("call_unknown", r"deep-copied", "Copy a tensor with clone()."),
    ("call_unknown", r"^checkpoint ", (
        "Pass use_reentrant=False, which gives the same gradients; what else is kept or run again, leave to it."
    )),
    ("call_unknown", r"^id\(\)", "Compare with `is`, or ask for it outside the compiled function."),
    ("tensor_value", r"random", f"{DRAW}, or draw it with torch.rand and choose with torch.where."),
    ("tensor_value", r"decision", "Decide with torch.where, or by shapes and Python values instead of tensor data."),
    ("tensor_value", r"text$", "Print and format tensors outside the compiled function."),
    ("tensor_value", r"Tensor\.(numpy|__array__)", NUMPY),
    ("tensor_value", r"looking for an element|__contains__", "(x == value).any() says the same and stays a tensor."),
    ("tensor_value", r"Tensor\.(equal|allclose)", "(x == y).all() says the same and stays a tensor."),
    ("tensor_value", r"(data_ptr|storage|storage_offset|is_set_to|is_pinned|is_shared|__dlpack__) reads", (
        "Look at a tensor's memory outside the compiled function."
    )),
    ("object_unknown", r"numpy\.", NUMPY),
    ("object_unknown", r"iterator|a generator|\b(zip|map|filter|enumerate)\b", (
        "Keep what breaks out of the loop: its iterator is asked for each element as plain Python."
    )),
    ("object_unknown", r"weak reference", "Make the weak reference outside the compiled function."),
    ("object_unknown", r" is made|__del__", "Make the object outside the compiled function and pass it in."),
    ("object_unknown", r"autograd refuses", "Change the tensor itself instead of one of several views of it."),
    ("object_unknown", r"Script(Module|Function)", "Compile the Python that it was scripted from."),
    ("dynamic_shape", r"no kernel|reads data", "Call it outside the compiled function."),
    ("dynamic_shape", r"^allclose", "torch.isclose(x, y).all() says the same and stays a tensor."),
    ("tensor_subclass", r"special layout", LAYOUT),
    ("too_deep", r"ran out of stack", "Call the function from a place that is nested less deeply."),
    ("generator_escapes", r"the function is a generator", (
        "Generator functions run as plain Python; compile what they call, or a function that consumes them."
    )),
    ("generator_escapes", r"cleanup", "Consume the generator to its end, or close() it outside."),
    ("mutation_unknown", r"share their memory", "Write to a copy: x.clone(), or x.contiguous() of an expanded tensor."),
)  # fmt: skip


def hint_for(code: str, reason: str) -> str:
    """What to do about a break with this code and this reason."""
    rows = (hint for of_code, words, hint in FINER if of_code == code and re.search(words, reason))
    return next(rows, HINTS[code])
