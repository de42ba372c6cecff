"""What ATen's kernels for lists of tensors count on a GPU: which of them forget to is written down in a table."""

import pytest
import torch

import bothways
from bothways import ops
from bothways.testing import difference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

NAMES = sorted(name for name in dir(torch) if name.startswith("_foreach_") and name.endswith("_"))
# What an operation may take besides the list that it writes to.
MORE = {
    "nothing": lambda make: (),
    "a number": lambda make: (0.5,),
    "numbers": lambda make: ([0.5, 0.25],),
    "a list": lambda make: (make(),),
    "two lists": lambda make: (make(), make()),
    "two lists and a number": lambda make: (make(), make(), 0.5),
    "a list and a number": lambda make: (make(), 0.5),
}


def tensors():
    return [torch.full((4,), 0.5, device="cuda"), torch.full((3, 2), 0.25, device="cuda")]


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("name", NAMES)
def test_versions_are_those_of_eager(name, more):
    def program(written, *others):
        getattr(torch, name)(written, *others)

    sides = []
    try:
        program(tensors(), *MORE[more](tensors))
    except Exception:  # noqa: BLE001
        pytest.skip("takes other arguments")
    for function in (program, bothways.compile(program, backend="aot_eager")):
        written = tensors()
        function(written, *MORE[more](tensors))
        sides.append((written, [one._version for one in written]))
    assert difference(*sides, tol=1e-5) is None
    if not sides[0][1][0]:
        assert ops.named(name).uncounted_at_once
