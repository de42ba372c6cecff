"""A compiled function is replayed from its third call on, and what it gives belongs to the caller."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from aten_counting import computing_calls
from replaying import DEVICE, graphs, random, replays, why_not

import bothways


def program(x, w):
    hidden = F.layer_norm(torch.relu(x @ w) + 1, w.shape[-1:])
    return hidden, (x * 2).sum()


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture
def recorder():
    with graphs() as found, torch.no_grad():
        yield found


def test_the_third_call_is_replayed(recorder):
    compiled, w = bothways.compile(program, fullgraph=True), random(8, 8)
    for call in range(5):
        x = random(4, 8)
        close(compiled(x, w), program(x, w))
        assert replays(compiled)["forward"] == max(0, call - 1)
    assert why_not(compiled) == []


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32], ids=str)
def test_results_of_one_dtype_are_copied_at_once(recorder, dtype):
    """The counters of fifty norms, for one."""

    def counted(*numbers):
        return [number + 1 for number in numbers]

    compiled = bothways.compile(counted)
    numbers = [torch.tensor(number, device=DEVICE).to(dtype) for number in range(5)]
    for _ in range(4):
        close(compiled(*numbers), counted(*numbers))
    calls = computing_calls(lambda: close(compiled(*numbers), counted(*numbers)))
    assert calls["aten::_foreach_mul"] == 1 and "aten::clone" not in calls


def test_results_that_are_held_never_change(recorder):
    compiled, w = bothways.compile(program), random(8, 8)
    held = []
    for _ in range(8):
        x = random(4, 8)
        held.append((compiled(x, w), program(x, w)))
    for found, expected in held:
        close(found, expected)
    memories = {found[0].untyped_storage().data_ptr() for found, _ in held}
    assert len(memories) == len(held)


def test_views_of_old_results_never_change(recorder):
    compiled, w = bothways.compile(program), random(8, 8)
    held = []
    for _ in range(6):
        x = random(4, 8)
        held.append((compiled(x, w)[0][:, 1:3].T, program(x, w)[0][:, 1:3].T))
    for found, expected in held:
        close(found, expected)


def test_inputs_that_move_are_copied_and_inputs_that_stay_are_read_where_they_are(recorder):
    compiled, w = bothways.compile(program), random(8, 8)
    kept = []  # so that no address comes again
    for _ in range(6):
        kept.append(random(4, 8))
        close(compiled(kept[-1], w), program(kept[-1], w))
    w.mul_(-2)  # at its own address
    close(compiled(kept[0], w), program(kept[0], w))
    assert replays(compiled)["forward"] == 5


def test_an_input_that_begins_to_move_is_still_right(recorder):
    compiled, w, x = bothways.compile(program), random(8, 8), random(4, 8)
    for _ in range(4):
        close(compiled(x, w), program(x, w))
    kept = []
    for _ in range(6):
        kept.append(random(4, 8))
        close(compiled(kept[-1], w), program(kept[-1], w))
    assert replays(compiled)["forward"] >= 6


def test_parameters_with_other_data_are_seen(recorder):
    module = torch.nn.Linear(8, 8, device=DEVICE)
    compiled, x = bothways.compile(lambda x: torch.sin(module(x)) * 2), random(4, 8)
    for call in range(12):
        if call in (4, 5, 9):
            module.weight.data = random(8, 8)
        close(compiled(x), torch.sin(module(x)) * 2)
    other = torch.nn.Linear(8, 8, device=DEVICE)
    module.load_state_dict(other.state_dict(), assign=True)
    for _ in range(4):
        close(compiled(x), torch.sin(other(x)) * 2)


def test_an_input_that_is_changed_in_place_is_changed_and_counted(recorder):
    def change(x, running):
        y = torch.sin(x) + 1
        running.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return y * 2

    compiled = bothways.compile(change, fullgraph=True)
    ours, theirs = random(8, seed=0), random(8, seed=0)
    for _ in range(6):
        x = random(4, 8)
        version = ours._version
        close(compiled(x, ours), change(x, theirs))
        close(ours, theirs)
        assert ours._version > version
    assert replays(compiled)["forward"] == 4


def test_a_changed_input_that_moves_gets_its_new_values(recorder):
    def change(x):
        x.mul_(2).add_(1)
        return x.sin() + x.cos()

    compiled, kept = bothways.compile(change, fullgraph=True), []
    for _ in range(7):
        ours = random(4, 8)
        theirs = ours.clone()
        kept.append(ours)
        close(compiled(ours), change(theirs))
        close(ours, theirs)
    assert replays(compiled)["forward"] >= 4


def test_sizes_that_change_have_recordings_of_their_own(recorder):
    compiled, w = bothways.compile(program), random(8, 8)
    sizes = [4, 5, 6, 7] * 5
    for size in sizes:
        x = random(size, 8)
        close(compiled(x, w), program(x, w))
    assert replays(compiled)["forward"] >= 8


def test_sizes_that_never_come_again_are_launched_one_by_one(recorder):
    compiled, w = bothways.compile(program), random(8, 8)
    for size in range(2, 40):
        x = random(size, 8)
        close(compiled(x, w), program(x, w))
    assert sum(one.recordings for c in bothways.history(compiled) for one in c.replays) == 0


def test_recordings_are_few(recorder):
    compiled, w = bothways.compile(program, dynamic=True), random(8, 8)
    for size in range(2, 16):
        for _ in range(4):
            x = random(size, 8)
            close(compiled(x, w), program(x, w))
    assert sum(one.recordings for c in bothways.history(compiled) for one in c.replays) == 8


def test_numbers_that_change_are_never_stale(recorder):
    def scaled(x, factor):
        return (x * factor).sin() + factor

    compiled, x = bothways.compile(scaled), random(4, 8)
    for factor in (0.5, 0.5, 0.5, 1.5, 2.5, 2.5, 2.5, 2.5, 3.5, 4.5, 5.5):
        close(compiled(x, factor), scaled(x, factor))


def test_outputs_that_are_inputs_or_views_of_them_stay_what_they_are(recorder):
    def several(x, w):
        y = torch.sin(x) * w
        return y, x, x[1:], y, x.T

    compiled, kept = bothways.compile(several), []
    for _ in range(5):
        x, w = random(4, 4), random(4, 4)
        kept.append((x, w))
        y, same, window, again, turned = compiled(x, w)
        close((y, window, turned), (torch.sin(x) * w, x[1:], x.T))
        assert same is x and again is y
        x.add_(1)
        close((window, turned), (x[1:], x.T))


def test_a_recording_that_fails_is_a_plain_call():
    if DEVICE != "cpu":
        pytest.skip("fake graphs fail when they are told to")
    with graphs(fails=True), torch.no_grad():
        compiled, w = bothways.compile(program), random(8, 8)
        for _ in range(5):
            x = random(4, 8)
            close(compiled(x, w), program(x, w))
        assert replays(compiled) == {"forward": 0}
        assert any("not permitted when stream is capturing" in why for why in why_not(compiled))


def test_false_replays_nothing():
    with graphs(False), torch.no_grad():
        compiled, w = bothways.compile(program), random(8, 8)
        for _ in range(4):
            compiled(random(4, 8), w)
        assert replays(compiled) == {}


def test_false_stops_what_was_replayed(recorder):
    compiled, w = bothways.compile(program), random(8, 8)
    for _ in range(4):
        compiled(random(4, 8), w)
    before = replays(compiled)
    with bothways.config.patch(cuda_graphs=False):
        x = random(4, 8)
        close(compiled(x, w), program(x, w))
    assert replays(compiled) == before


def test_auto_leaves_a_small_function_alone():
    def small(x):
        return x.sin() + 1

    with graphs("auto"), torch.no_grad():
        compiled = bothways.compile(small)
        for _ in range(5):
            x = random(64)
            close(compiled(x), small(x))
        assert replays(compiled) == {"forward": 0}
        assert any("launches take no longer" in why for why in why_not(compiled))


def test_the_mode_of_torch_compile_asks_for_it():
    def small(x):
        return x.sin() + 1

    with graphs("auto"), torch.no_grad():
        compiled = bothways.compile(small, mode="reduce-overhead")
        for _ in range(5):
            x = random(64)
            close(compiled(x), small(x))
        assert replays(compiled) == {"forward": 3}


def test_another_value_is_refused():
    with pytest.raises(ValueError, match="config.cuda_graphs must be one of 'auto', True, False"):
        bothways.config.cuda_graphs = "always"
    with pytest.raises(ValueError, match="cuda_graphs"):
        bothways.config.cuda_graphs = 1
    assert bothways.config.cuda_graphs == "auto"


def test_random_numbers_are_those_of_plain_launches():
    def drop(x):
        return F.dropout(torch.sin(x), 0.4) + 1

    found = []
    for wanted in (False, True):
        with graphs(wanted), torch.no_grad():
            bothways.reset()
            compiled = bothways.compile(drop)
            torch.manual_seed(3)
            x = random(64, 64, seed=1)
            results = [compiled(x) for _ in range(6)]
            state = torch.cuda.get_rng_state() if DEVICE == "cuda" else torch.get_rng_state()
            found.append((results, state, torch.rand(4, device=DEVICE)))
            if wanted:
                reasons = why_not(compiled)
                assert reasons or replays(compiled)["forward"] == 4
    assert torch.equal(found[0][1], found[1][1]) and torch.equal(found[0][2], found[1][2])
    for one, other in zip(found[0][0], found[1][0], strict=True):
        assert torch.equal(one, other)


def test_everything_is_freed_with_the_function(recorder):
    compiled, w = bothways.compile(program), random(8, 8)
    for _ in range(4):
        compiled(random(4, 8), w)
    weight = weakref.ref(w)
    del w
    gc.collect()
    assert weight() is None  # a recording holds none of its inputs
    assert bothways.memory()
    bothways.reset()
    del compiled
    gc.collect()
    assert bothways.memory() == []


def test_memory_says_what_is_held_by_whom(recorder):
    compiled, w = bothways.compile(program), random(8, 8)
    for _ in range(4):
        compiled(random(4, 8), w)
    [held] = bothways.memory()
    assert held.function == "program" and held.graph == "forward" and held.recordings == 1 and held.bytes > 0
    assert "program" in str(held)


def test_explain_and_history_say_what_is_replayed(recorder):
    compiled, w = bothways.compile(program), random(8, 8)
    assert "not replayed, no call has come three times" not in bothways.explain(compiled).details
    compiled(random(4, 8), w)
    assert "not replayed, no call has come three times" in bothways.explain(compiled).details
    for _ in range(4):
        compiled(random(4, 8), w)
    assert "forward: replayed (1 CUDA graph" in bothways.explain(compiled).details
    assert "3 calls" in str(bothways.history(compiled)[0])


def test_the_log_says_what_is_recorded(recorder, caplog):
    with bothways.config.patch(logs="graphs_on_gpu"):
        compiled, w = bothways.compile(program), random(8, 8)
        for _ in range(4):
            compiled(random(4, 8), w)
    assert any("program, forward: recorded" in record.getMessage() for record in caplog.records)


def test_a_number_that_changes_at_every_call_is_set(recorder):
    def scaled(x, factor):
        return torch.relu(x * factor).sin() + (1 - factor * 0.01)

    compiled, x = bothways.compile(scaled, dynamic=True), random(4, 8)
    for call in range(12):
        factor = 1 / (call + 3.3)
        close(compiled(x, factor), scaled(x, factor))
    for factor in (0.0, 1.0, 0.123, 2.0, float("inf"), 0.321, 1e-30, 0.25):
        torch.testing.assert_close(compiled(x, factor), scaled(x, factor), equal_nan=True)
    assert replays(compiled)["forward"] >= 9, why_not(compiled)


def test_numbers_that_cannot_be_set_are_launched_until_they_repeat():
    if DEVICE != "cpu":
        pytest.skip("fake graphs fix numbers when they are told to")

    def scaled(x, factor):
        return (x * factor).sin()

    with graphs(fixes_numbers=True), torch.no_grad():
        compiled, x = bothways.compile(scaled, dynamic=True), random(4, 8)
        for call in range(24):
            factor = 0.3 + call // 6
            close(compiled(x, factor), scaled(x, factor))
        assert 8 <= replays(compiled)["forward"] <= 16
        assert any("numbers are fixed" in why for why in why_not(compiled))


def many_launches(x, w, factor):
    for _ in range(12):
        x = torch.tanh(x @ w * factor)
    return x - factor * 0.5


@pytest.mark.parametrize("wanted", ["auto", True])
def test_numbers_that_change_at_every_call_are_replayed_by_default(wanted):
    with graphs(wanted), torch.no_grad():
        compiled, x, w = bothways.compile(many_launches, dynamic=True), random(4, 8), random(8, 8)
        for factor in (0.3, 0.31, 0.32, 0.33, 0.0, 1.0, 0.5, -0.0, 2.0, 1e-30, 0.7):
            close(compiled(x, w, factor), many_launches(x, w, factor))
        assert replays(compiled)["forward"] >= 8, why_not(compiled)


def test_nothing_and_minus_nothing_are_two_numbers(recorder):
    def signed(x, factor):
        return 1 / (x * factor)

    compiled, x = bothways.compile(signed, dynamic=True), random(4).abs() + 1
    with torch.no_grad():
        compiled(x, 0.3)
        for factor in (0.0, 0.0, 0.0, 0.0, -0.0, 0.0, -0.0, -0.0):
            assert torch.equal(compiled(x, factor), signed(x, factor))
        assert replays(compiled)["forward"] >= 4


def test_by_default_a_number_that_an_operation_of_atens_gets_is_not_tried_with_others():
    def mixed(x, w, factor):
        for _ in range(12):
            x = torch.tanh(torch.addmm(x, x, w, alpha=factor))
        return x

    with graphs("auto"), torch.no_grad():
        compiled, x, w = bothways.compile(mixed, dynamic=True), random(8, 8), random(8, 8)
        for factor in (0.3, 0.31, 0.32, 0.33, 0.34, 0.34, 0.34, 0.34, 0.34):
            close(compiled(x, w, factor), mixed(x, w, factor))
        reasons = why_not(compiled)
        assert any("given to an operation of ATen's" in why for why in reasons) or replays(compiled)["forward"] >= 6
