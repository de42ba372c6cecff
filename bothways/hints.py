"""What people can do about a break, by its reason code, and finer where the code alone says too little.

A finer row has words of the reason it is for. A hint says what helps, never what cannot: the program for each is in
``tests/api/test_hints.py``.
"""

from __future__ import annotations

import re

# Reason code -> what the user can do about it. The codes are stable: people filter logs by them.
HINTS: dict[str, str] = {
    "call_unknown": (
        "Call it outside the compiled function, or mark it with bothways.allow_in_graph if it only works on tensors."
    ),
    "debugger": "The rest of the function runs as plain Python, so that you can debug it; remove the call when done.",
    "call_disabled": "The function called is marked with bothways.disable; move the call out of the compiled function.",
    "graph_break": "Remove the bothways.graph_break() call.",
    "tensor_branch": (
        "Choose with torch.where, or return the tensor and decide outside, or decide by shapes and Python values "
        "instead of tensor data."
    ),
    "tensor_value": (
        "Return the number and use it outside, or keep it a tensor (operations broadcast), or set "
        "config.numbers_from_data = True, which makes such numbers part of the graph."
    ),
    "dynamic_shape": (
        "Keep the shape and replace what should not count by a neutral value (torch.where); or, if a size depends on "
        "data, set config.sizes_from_data = True."
    ),
    "attribute_unknown": "Read the attribute outside the compiled function and pass it in.",
    "operator_unknown": "Do this operation outside the compiled function.",
    "opcode_unknown": "Move this statement out of the compiled function.",
    "class_definition": "Define the class at module level.",
    "import": "Import at module level.",
    "generator_escapes": "Consume the generator inside the function, or return a list.",
    "async": "Compile the synchronous parts; coroutines run as plain Python.",
    "autograd_function": "Keep side effects out of forward and backward, and give apply only tensors and constants.",
    "object_in_graph": "Change the object outside the compiled function, or pass its parts instead.",
    "hook": "Register the hook outside the compiled function.",
    "closure": (
        "There is nothing to do: the closure is compiled, and the optimizer calls it as often as it needs to."
    ),
    "backward": (
        "Compute everything the backward reaches inside the function, or call backward() outside, where it is compiled "
        "as well. Here PyTorch's engine runs it, between two graphs."
    ),
    "transform": (
        "Pass tensors into the function given to torch.func.grad or vmap as arguments, and out of it as results; keep "
        "hooks, custom functions, random numbers and questions about gradients out of it."
    ),
    "lazy_module": (
        "Nothing to do: the module finds out its sizes in this call, as plain Python; the next call is captured."
    ),
    "lazy_state": (
        "Nothing to do: the optimizer creates its state in this step, as plain Python; the next step is captured."
    ),
    "op_unknown": (
        "If the operation is your own, tell PyTorch the shape of what it returns (torch.library.register_fake); or "
        "call it outside the compiled function."
    ),
    "op_failed": (
        "If it raises without compile as well, give it arguments that fit; if not, call it outside the compiled "
        "function."
    ),
    "tensor_subclass": "Pass a plain torch.Tensor or nn.Parameter.",
    "builtin_replaced": "Put the original back before calling the compiled function, or do that part outside.",
    "torch_mode": "Leave the mode or the transform before calling the compiled function, or do that part outside.",
    "mutation_unknown": "Change the object outside the compiled function.",
    "object_unknown": "Pass the parts of the object that you need, instead of the object.",
    "hash_unknown": "Use keys and set elements that are numbers, strings or tuples of them.",
    "context_manager": "Enter and leave the context manager inside the same function, with no break in between.",
    "training_loop": (
        "There is nothing to do: each turn of the loop calls one program. To have no break at all, compile the body of "
        "the loop."
    ),
    "too_long": "Do long loops of plain Python outside the compiled function.",
    "too_deep": "Make the recursion shallower, or write a loop; or raise config.inline_depth_limit.",
    "exception_escapes": (
        "The function raises: the call runs as plain Python, so that you get the exception with its own traceback."
    ),
    "escape": "The object cannot be rebuilt after the graph has run; return its parts instead.",
    "loop_state": "Move what breaks out of the comprehension, or write it as a loop.",
    "value_changes": (
        "Do this outside the compiled function: the value differs from call to call, so it cannot be a constant."
    ),
    "unstable_guard": "What the function reads here is different each time; read it outside the compiled function.",
    "internal": "This is a bug in bothways, please report it; the function ran as plain Python.",
}

DRAW = "Draw the number outside the compiled function and pass it in"
NUMPY = "NumPy runs as plain Python: use functions of torch, or do that part outside the compiled function."
LAYOUT = "Sparse, quantized and nested tensors run as plain Python; make and use them outside the compiled function."

# Reason code, words of the reason -> what to do about that. The first row that fits counts.
FINER: tuple[tuple[str, str, str], ...] = (
    ("value_changes", r"^(each turn|after a break)", "Loop over the elements themselves instead of indexing them."),
    ("value_changes", r"has to be known here", (
        "An operation that takes plain numbers alone, as a probability, runs as plain Python where they change at each "
        "call; nothing to do if that is fast enough, or let the number change less often."
    )),
    ("mutation_unknown", r"may fail, and", (
        "Change tensors and objects behind what may fail, or outside the compiled function."
    )),
    ("call_unknown", r"^print\(\)", (
        "Print outside the compiled function; or use logging, which is captured for constants and numbers."
    )),
    ("call_unknown", r"^(a message is logged|a warning is given)", (
        "Log or warn with constants and numbers only (x.item() instead of x), or do it outside."
    )),
    ("call_unknown", r"^logging\.", "Get loggers at module level; their messages are captured."),
    ("call_unknown", r"'torch\.equal'", "(x == y).all() says the same and stays a tensor."),
    ("call_unknown", r"^torch\.(nested|sparse|ao)\.", LAYOUT),
    ("call_unknown", r"^random\.|^random numbers", f"{DRAW}; random(), randint() and the like are captured."),
    ("call_unknown", r"numpy\.", NUMPY),
    ("call_unknown", r"(locals|globals|vars|dir|eval|exec|compile)\(|sys\._getframe", (
        "Keep code that looks at frames, or creates code, out of the compiled function."
    )),
    ("call_unknown", r"^torch\.(func|_functorch)\.", (
        "This function runs as plain Python, between two graphs; grad, vjp, jvp, jacrev, jacfwd and vmap are captured."
    )),
    ("call_unknown", r"\bseed\b|manual_seed|rng_state", "Seed outside the compiled function."),
    ("call_unknown", r"^(a tensor operation cannot take|a graph cannot hold)", (
        "Give operations tensors and constants: take them out of the object first."
    )),
    ("call_unknown", r"deep-copied", "Copy a tensor with clone()."),
    ("call_unknown", r"^checkpoint ", "Pass use_reentrant=False: the gradients are the same, and it can be captured."),
    ("call_unknown", r"^id\(\)", "Compare with `is`, or call id() outside the compiled function."),
    ("tensor_value", r"random", f"{DRAW}, or draw it with torch.rand and choose with torch.where."),
    ("tensor_value", r"decision", "Decide with torch.where, or by shapes and Python values instead of tensor data."),
    ("tensor_value", r"text$", "Print and format tensors outside the compiled function."),
    ("tensor_value", r"Tensor\.(numpy|__array__)", NUMPY),
    ("tensor_value", r"looking for an element|__contains__", "(x == value).any() says the same and stays a tensor."),
    ("tensor_value", r"Tensor\.(equal|allclose)", "(x == y).all() says the same and stays a tensor."),
    ("tensor_value", r"(data_ptr|storage|storage_offset|is_set_to|is_pinned|is_shared|__dlpack__) reads", (
        "Look at a tensor's memory outside the compiled function."
    )),
    ("object_unknown", r"numpy\.", "Make tensors of NumPy arrays first (torch.from_numpy), or do that part outside."),
    ("object_unknown", r" _io\.", "Read and write files outside the compiled function."),
    ("object_unknown", r"iterator|a generator|\b(zip|map|filter|enumerate)\b", (
        "Pass a list instead of an iterator, or move what breaks out of the loop over it."
    )),
    ("object_unknown", r"weak reference", "Make the weak reference outside the compiled function."),
    ("object_unknown", r" is made|__del__", "Make the object outside the compiled function and pass it in."),
    ("object_unknown", r"autograd refuses", "Change the tensor itself instead of one of several views of it."),
    ("object_unknown", r"Script(Module|Function)", "Compile the Python it was scripted from instead."),
    ("dynamic_shape", r"no kernel|reads data", "Call it outside the compiled function."),
    ("dynamic_shape", r"^allclose", "torch.isclose(x, y).all() says the same and stays a tensor."),
    ("tensor_subclass", r"special layout", LAYOUT),
    ("too_deep", r"ran out of stack", "Call the compiled function from code that is nested less deeply."),
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
