"""What rounding may make of a program's numbers is no difference of the soaks, and everything else is one."""

import pytest
import soak_rounding
import torch


def plain():
    """Calls with a number that says nothing in single precision, one that is well known, and one near a decision."""
    x = torch.arange(1.0, 100.0).reciprocal()
    total = (x * 1.7).sum()
    large = (total * 1e6).sin()
    nothing = (x * 1.7).sum() - total
    log = ["below" if nothing < 0 else "level"]
    return [{"large": ("tensor", large), "total": total, "log": log, "sign": nothing.sign()}]


def changed(**parts):
    [shown] = plain()
    return [{**shown, **parts}]


def verdict(got):
    return soak_rounding.beyond_rounding(plain(), got, lambda: soak_rounding.rounded(plain))


def test_numbers_that_rounding_alone_decides_say_nothing():
    assert verdict(plain()) is None
    assert verdict(changed(large=("tensor", torch.tensor(0.123)))) is None
    assert verdict(changed(log=["level"])) is None and verdict(changed(log=["below"])) is None


@pytest.mark.parametrize(
    "parts",
    [
        {"total": torch.tensor(8.9)},
        {"large": ("tensor", torch.tensor(40.0))},
        {"large": ("tensor", torch.tensor(float("nan")))},
        {"large": ("tensor", torch.tensor([0.1, 0.2]))},
        {"large": ("array", torch.tensor(0.123))},
        {"log": ["sideways"]},
        {"log": ["level", "level"]},
        {"sign": torch.tensor(True)},
    ],
)
def test_everything_else_is_a_difference(parts):
    number, part, _ = verdict(changed(**parts))
    assert (number, part) == (0, next(iter(parts)))


def test_a_number_that_says_nothing_hides_no_other_one():
    assert verdict(changed(large=("tensor", torch.tensor(0.123)), total=torch.tensor(8.9)))[1] == "total"


def test_other_digits_change_nothing_else():
    """Neither random numbers nor versions, nor what autograd knows; and exact numbers stay so."""

    def run():
        torch.manual_seed(3)
        weight = torch.full((4,), 0.3, requires_grad=True)
        kept = torch.rand(4)
        with torch.no_grad():
            kept.mul_(0.7)
        loss = (weight * kept + 1).square().sum()
        loss.backward()
        counts = (torch.arange(6.0) * 2).sum()
        return [torch.rand(1), kept._version, weight._version, weight.is_leaf, loss.grad_fn.name(), counts, weight.grad]

    expected, *others = run(), *soak_rounding.rounded(run)
    for other in others:
        assert torch.equal(expected[0], other[0]) and expected[1:5] == other[1:5] and torch.equal(expected[5], other[5])
        torch.testing.assert_close(expected[6], other[6], rtol=1e-5, atol=0)
    assert any(not torch.equal(expected[6], other[6]) for other in others)
