"""What a compiled function changes outside: everything Python would, in order, with identity and aliasing kept.

The identity of objects cannot be seen by comparing copies, so these tests run the program on one set of
objects plainly, on another compiled, and compare what is left of each.
"""

import collections
import types

import pytest
import torch

import bothways
from bothways.errors import Unsupported
from bothways.testing import CompileCounter, same

X = torch.arange(4.0)
COUNT = 0
ITEMS = []


class Node:
    def __init__(self, value=None, next=None):
        self.value, self.next = value, next


def compiled(program, **options):
    return bothways.compile(program, backend=CompileCounter(), **{"fullgraph": True, **options})


# Variables


def test_global_variables():
    global COUNT, MADE

    def program(x):
        global COUNT, MADE
        COUNT += 1
        MADE = x + 1
        before = COUNT
        COUNT += 1
        return x + before, MADE

    COUNT = 0
    run = compiled(program)
    out, made = run(X)
    assert COUNT == 2 and MADE is made and torch.equal(out, X + 1)
    assert torch.equal(run(X)[0], X + 3) and COUNT == 4
    del MADE


def test_deleted_global_variables():
    global GONE

    def program(x):
        global GONE
        del GONE
        try:
            GONE
        except NameError as error:
            return x + 1, str(error)

    GONE = 1
    assert compiled(program)(X)[1] == "name 'GONE' is not defined"
    assert "GONE" not in globals()


def test_a_global_variable_that_appears_later():
    def program(x):
        try:
            return x + APPEARS
        except NameError:
            return x - 1

    run = compiled(program)
    assert torch.equal(run(X), X - 1)
    globals()["APPEARS"] = 5
    assert torch.equal(run(X), X + 5)
    del globals()["APPEARS"]
    assert torch.equal(run(X), X - 1)


def test_closure_cells():
    n, log = 0, []

    def program(x):
        nonlocal n
        n += 1
        log.append(n)

        def more():
            nonlocal n
            n += 10
            return n

        return x + more(), more

    run = compiled(program)
    out, more = run(X)
    assert n == 11 and log == [1] and torch.equal(out, X + 11)
    assert more() == 21 and n == 21  # the returned function shares the cell
    run(X)
    assert n == 32 and log == [1, 22]


def test_two_functions_that_share_a_cell():
    def counter():
        n = 0

        def increase():
            nonlocal n
            n += 1

        return increase, lambda: n

    increase, read = counter()

    def program(x):
        increase()
        increase()
        return x + read()

    run = compiled(program)
    assert torch.equal(run(X), X + 2) and read() == 2
    assert torch.equal(run(X), X + 4) and read() == 4


# Attributes


def test_attributes_of_objects():
    def program(x, node):
        node.value = x + 1
        node.made = node.value * 2
        node.next = 3
        del node.next
        node.next = 4
        return node.made

    node = Node(1)
    out = compiled(program)(X, node)
    assert node.made is out and torch.equal(node.value, X + 1)
    assert list(vars(node)) == ["value", "made", "next"] and node.next == 4


def test_deleted_attributes():
    def program(x, node):
        del node.value
        node.temporary = 1
        del node.temporary
        return x + 1, hasattr(node, "value")

    node = Node(1)
    assert compiled(program)(X, node)[1] is False
    assert vars(node) == {"next": None}


def test_attributes_of_functions_classes_and_modules():
    class Settings:
        level = 1

    def helper(x):
        helper.calls += 1
        return x + helper.calls

    helper.calls = 0
    module = types.ModuleType("module_of_a_user")
    module.count, module.gone = 1, 2

    def program(x):
        Settings.level += 1
        module.count += 1
        module.made = x
        del module.gone
        return helper(helper(x)) + Settings.level

    run = compiled(program)
    assert torch.equal(run(X), X + 1 + 2 + 2)
    assert (helper.calls, Settings.level, module.count) == (2, 2, 2)
    assert module.made is X and not hasattr(module, "gone")


def test_attributes_of_tensors():
    def program(x, node):
        x.tag = 3
        y = x + 1
        y.notes = [x.tag]
        node.value = node.next = y
        return y, y.notes

    x, node = X.clone(), Node()
    y, notes = compiled(program)(x, node)
    assert x.tag == 3 and y is node.value is node.next and y.notes is notes == [3]


def test_properties_and_setattr_run_once():
    class Logged:
        def __init__(self):
            self.__dict__["log"] = []

        def __setattr__(self, name, value):
            self.log.append((name, value))
            self.__dict__[name] = value

        @property
        def doubled(self):
            self.count = 1
            return self.a * 2

    def program(x, logged):
        logged.a = 1
        logged.b = 2
        logged.a = 6
        return x + logged.doubled

    plain, other = Logged(), Logged()
    assert torch.equal(compiled(program)(X, other), program(X, plain))
    assert other.__dict__ == plain.__dict__


# Containers


def test_containers_that_were_passed_in():
    def program(x, items, table, names, queue):
        items.append(x + 1)
        items[0] = 5
        items[1].append(items[1])
        table["k"] = items
        table.pop("z")
        names.add(3)
        queue.appendleft(x)
        queue.pop()
        return items

    inner = [2]
    items, table, names, queue = [1, inner, 3], {"z": 1, "y": 2}, {1}, collections.deque([1, 2])
    out = compiled(program)(X, items, table, names, queue)
    assert out is items is table["k"]
    assert items[0] == 5 and items[1] is inner and inner[1] is inner and len(items) == 4
    assert list(table) == ["y", "k"] and names == {1, 3}
    assert queue[0] is X and len(queue) == 2


def test_order_inside_containers():
    def program(x, ordered, table):
        ordered.move_to_end("a")
        ordered["c"] = x + 1
        del ordered["b"]
        ordered["b"] = 1
        table["a"] = table.pop("a")
        return list(ordered), list(table)

    def fresh():
        return collections.OrderedDict(a=1, b=2), {"a": 1, "b": 2}

    plain, other = fresh(), fresh()
    assert compiled(program)(X, *other) == program(X, *plain)
    assert same(other, plain) and [list(c) for c in other] == [list(c) for c in plain]


def test_elements_trade_places():
    def program(x, items, a, b):
        items[0], items[1] = items[1], items[0]
        items.reverse()
        items.insert(0, items[0])
        a.value, b.value = b.value, a.value
        a.next, b.next = b, a
        return x + len(items)

    p, q, r = [1], [2], [3]
    items, a, b = [p, q, r], Node(p), Node(q)
    compiled(program)(X, items, a, b)
    assert [id(item) for item in items] == [id(r), id(r), id(p), id(q)]
    assert a.value is q and b.value is p and a.next is b and b.next is a


def test_defaults_that_are_changed():
    def remember(value, kept=[]):
        kept.append(value)
        return kept

    def program(x):
        return remember(x + 1)

    run = compiled(program)
    assert run(X) is run(X) is remember.__defaults__[0]
    assert len(remember.__defaults__[0]) == 2


# Identity and aliasing


def test_one_object_stays_one_object():
    def program(x, node):
        items = [x + 1]
        node.value = node.next = items
        table = {"items": items}
        node.table = table
        items.append(table)
        return items, table

    node = Node()
    items, table = compiled(program)(X, node)
    assert items is node.value is node.next is table["items"]
    assert table is node.table is items[1]


def test_returned_objects_are_the_ones_that_were_given():
    def program(x, node, items, pair):
        return node, items, pair, x, [x, node], {"items": items}, x + 1

    node, items, pair = Node(), [1], (1, [2])
    out = compiled(program)(X, node, items, pair)
    assert out[0] is node and out[1] is items and out[2] is pair and out[3] is X
    assert out[4][0] is X and out[4][1] is node and out[5]["items"] is items


def test_objects_that_contain_themselves():
    def program(x):
        a, b = Node(x + 1), Node(2)
        a.next, b.next = b, a
        items = [a]
        items.append(items)
        table = {"items": items}
        table["table"] = table
        pair = (items, table)
        items.append(pair)
        return a, items, table, pair

    a, items, table, pair = compiled(program)(X)
    assert a.next.next is a and items[0] is a and items[1] is items and items[2] is pair
    assert table["table"] is table and table["items"] is items and torch.equal(a.value, X + 1)


def test_objects_made_inside_are_stored_outside():
    def program(x, head):
        total, node = x, head
        while node is not None:
            total = total + node.value
            node.value = total
            node = node.next
        head.next = Node(0, head)
        return total

    def fresh():
        return Node(1.0, Node(2.0))

    plain, other = fresh(), fresh()
    run = compiled(program)
    assert torch.equal(run(X, other), program(X, plain))
    assert other.next.next is other and torch.equal(other.value, plain.value)
    run(X, fresh())


def test_what_was_read_before_a_change_is_the_old_object():
    def program(x, node, items, table):
        old = node.value, items[0], table["k"]
        node.value, items[0], table["k"] = 1, 2, 3
        return old, x + 1

    a, b, c = [1], [2], [3]
    old, _ = compiled(program)(X, Node(a), [b], {"k": c})
    assert old[0] is a and old[1] is b and old[2] is c


def test_the_same_list_passed_twice_is_another_program():
    def program(x, a, b):
        a.append(x)
        b.append(2)
        return x + len(a), len(b)

    run = compiled(program)
    for _ in range(2):
        one, two, both = [], [], []
        assert run(X, one, two)[1] == 1 and len(one) == len(two) == 1
        assert run(X, both, both)[1] == 2 and len(both) == 2


def test_the_same_object_reached_by_two_paths():
    def program(x, node, items):
        items.append(1)
        ITEMS.append(2)
        return x + len(node.value) + len(items)

    run = compiled(program)
    for _ in range(2):
        ITEMS.clear()
        apart, together, shared = Node([]), Node([]), Node(ITEMS)
        assert torch.equal(run(X, apart, []), X + 1)
        assert torch.equal(run(X, together, together.value), X + 2)
        assert torch.equal(run(X, shared, []), X + 4)
    ITEMS.clear()


def test_the_same_tensor_changed_through_one_name():
    def program(x, y, node):
        x.add_(1)
        node.value = y + 1
        return x is y

    run = compiled(program)
    a, b, node = X.clone(), X.clone(), Node()
    assert run(a, b, node) is False and torch.equal(node.value, b + 1)
    assert run(a, a, node) is True and torch.equal(node.value, a + 1)
    assert torch.equal(a, X + 2)


def test_functions_made_inside_keep_their_cells():
    def program(x, kept):
        n = 0

        def increase():
            nonlocal n
            n += 1
            return x + n

        increase()
        kept.append(increase)
        return increase, lambda: n

    kept = []
    increase, read = compiled(program)(X, kept)
    assert kept[0] is increase and read() == 1
    assert torch.equal(increase(), X + 2) and read() == 2


# When a capture stops, and when the program raises


def change_everything(x, node, items, table):
    node.value += 1
    node.made = 1
    items.append(x + 1)
    table["k"] = items
    del table["gone"]


def stops_at_a_print(x, node, items, table):
    change_everything(x, node, items, table)
    print(end="")
    return x + node.value


def reads_data(x, node, items, table):
    change_everything(x, node, items, table)
    return x + x.sum().item()


@pytest.mark.parametrize("program", [stops_at_a_print, reads_data])
def test_a_failed_capture_leaves_no_trace(program):
    node, items, table = Node(1), [], {"gone": 1}
    with pytest.raises(Unsupported):
        compiled(program)(X, node, items, table)
    assert vars(node) == {"value": 1, "next": None} and items == [] and table == {"gone": 1}


@pytest.mark.parametrize("program", [stops_at_a_print, reads_data])
def test_a_function_that_cannot_be_captured_changes_everything_once(program):
    run = compiled(program, fullgraph=False)
    for _ in range(3):
        node, items, table = Node(1), [], {"gone": 1}
        run(X, node, items, table)
        assert node.value == 2 and len(items) == 1 and table == {"k": items}


def test_an_exception_after_changes():
    node, items = Node(1), []

    def program(x):
        node.value += 1
        items.append(x + 1)
        raise ValueError("late", node.value)

    run = compiled(program)
    for expected in (2, 3, 4):
        with pytest.raises(ValueError) as raised:
            run(X)
        assert raised.value.args == ("late", expected) and node.value == expected
    assert len(items) == 3


def test_an_exception_that_is_caught_after_changes():
    def change(x, node):
        node.value = x + 1
        raise KeyError("k")

    def program(x, node):
        try:
            change(x, node)
        except KeyError:
            node.next = "caught"
        finally:
            node.last = "finally"
        return node.value

    node = Node()
    out = compiled(program)(X, node)
    assert out is node.value and (node.next, node.last) == ("caught", "finally")


def test_effects_before_a_failing_operation_have_happened_and_later_ones_not():
    def program(weight, index, log):
        log.append("before")
        row = torch.nn.functional.embedding(index, weight)
        log.append("after")
        return row

    compiled = bothways.compile(program, fullgraph=True)
    weight, good, bad = torch.ones(3, 2), torch.tensor([1]), torch.tensor([7])
    logs = []
    for function in (program, compiled, compiled):
        log = []
        function(weight, good, log)
        with pytest.raises(IndexError) as caught:
            function(weight, bad, log)
        logs.append((log, str(caught.value), caught.value.__context__))
        assert any(entry.name == "program" for entry in caught.traceback)
    assert logs[0] == logs[1] == logs[2]


def test_a_graph_that_fails_where_python_does_not_is_logged(caplog):
    def broken(graph, inputs):
        def run(*args):
            raise ValueError("miscompiled")

        return run

    def program(x, index, log):
        log.append(1)
        return x[index]

    log = []
    with bothways.config.patch(logs="breaks"):
        result = bothways.compile(program, backend=broken)(torch.ones(2), torch.tensor([0]), log)
    assert torch.equal(result, torch.ones(1)) and log == [1]
    assert "miscompiled" in caplog.text


def test_an_except_around_an_operation_that_fails_on_its_data_catches():
    def program(x, index, log):
        try:
            return x[index] * 2
        except IndexError:
            return x.sum()
        finally:
            log.append("done")

    compiled = bothways.compile(program, fullgraph=True)
    x = torch.arange(3.0)
    for index in (1, 7, 2):
        expected, got = [], []
        given = torch.tensor([index])
        assert torch.equal(program(x, given, expected), compiled(x, given, got))
        assert expected == got
