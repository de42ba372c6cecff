"""Functions that assert something about data. Pytest rewrites the assertions of its own files, and not these."""


def twice(x):
    y = x.sin()
    assert x[0] == 3, f"the first is {x[0]}"
    assert x.sum() > 0
    return x.cos() + y


def caught(x, log):
    log.append("before")
    try:
        assert x > 0
    except AssertionError:
        log.append("caught")
        return x - 1
    return x + 1


def before_a_change(x):
    assert x.sum() > 0
    x.add_(1)
    return x * 2


def of_several(x):
    assert x > 0
    return x + 1


def about_a_number(x, t):
    n = t.item()
    assert n > 2
    return x[:n]
