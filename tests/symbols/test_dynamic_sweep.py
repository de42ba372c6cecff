"""Every operation PyTorch has samples of, called again and again with other sizes: one program serves them all.

The fast test takes the operations that were slowest to learn it; the slow ones take all, on each backend, and write
down what ``make conformance`` reports in docs/conformance.md.
"""

import json
import os
from pathlib import Path

import pytest
import torch
from op_samples import op_db
from size_sweeping import KINDS, sweep

# What PyTorch compiles by itself, has no kernels for here, or leaves in memory as it was.
SKIPPED = ("jiterator", "torch.ops.aten", "empty", "new_empty")
OPERATIONS = {
    operation.formatted_name: operation for operation in op_db if not operation.name.startswith(SKIPPED)
}
REPORT = os.environ.get("BOTHWAYS_CONFORMANCE")  # the folder that findings are written to
PARTS = 6
MOST_FROZEN = 0.05  # of the operations that are served at all
SAMPLE = (
    "scatter_reduce_sum cdist chunk nn_functional_grid_sample bucketize median cumprod masked_scatter index_copy kron "
    "take_along_dim nn_functional_interpolate_bilinear nn_functional_pad_reflect fft_fft2 fft_irfft linalg_inv "
    "linalg_cholesky special_i1 multinomial nn_functional_max_pool1d masked_sum logcumsumexp roll"
).split()


@pytest.mark.parametrize("name", SAMPLE)
def test_one_program_serves_sizes_that_change(name):
    found = sweep(OPERATIONS[name], "aot_eager")
    if torch.empty(0).is_cuda:  # where some have kernels of other libraries, and no rule for all sizes
        assert found.kind not in ("fails", "no variants"), found
    else:
        assert found.kind == "dynamic", found


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("part", range(PARTS))
def test_few_operations_freeze_sizes(backend, part):
    found = {name: sweep(OPERATIONS[name], backend) for name in list(OPERATIONS)[part::PARTS]}
    if REPORT:
        folder = Path(REPORT) / "sizes"
        folder.mkdir(parents=True, exist_ok=True)
        facts = {name: (outcome.kind, outcome.detail) for name, outcome in found.items()}
        (folder / f"{backend}-{part}.json").write_text(json.dumps(facts, indent=1))
    kinds = {kind: [name for name, outcome in found.items() if outcome.kind == kind] for kind in KINDS}
    assert not kinds["fails"], [found[name] for name in kinds["fails"]]
    served = len(kinds["dynamic"]) + len(kinds["decided"]) + len(kinds["specialises"])
    assert len(kinds["specialises"]) < 2 * MOST_FROZEN * served  # of a part; all together are under MOST_FROZEN


def test_what_depends_on_data_is_not_frozen_but_breaks():
    assert sweep(OPERATIONS["nonzero"], "eager").kind == "breaks"


def test_a_number_of_parts_is_a_fact_of_the_program():
    """Three parts, then four: the sizes of each are symbols, how many there are decides what the program returns."""
    assert sweep(OPERATIONS["split"], "aot_eager").kind == "decided"
