"""Templates of programs on objects: classes and their protocols, containers under several names, generators, errors.

``{i}`` and ``{j}`` are numbers, ``{t}`` is a tensor, ``{cls}`` a class, ``{a}`` a letter, ``{risk}`` a statement that
may raise. Each statement leaves what it has to show in ``r``.
"""

import random
import re

from soak_objects_prelude import PRELUDE

STATEMENTS = [
    "o = {cls}({t}, {i})", "o = {cls}.make({t}, {i}) if {i} > 2 else o", "r = o.step({t})", "r = o.prop", "o.prop = {i}", "del o.prop", "r = o.cached",
    "o.__dict__.pop('cached', None)", "r = type(o).count", "A.count += 1", "o.count += 1", "B.count = {i}", "r = o.stat({t})", "r = o.num",
    "o.num = {i}", "o.num = 'x'", "del o.num", "r = A.num.kind.__name__", "r = o.nd", "o.nd = 3", "r = A.nd", "r = o.automatic", "r = o.absent",
    "r = getattr(o, 'absent', {i})", "r = hasattr(o, 'absent'), hasattr(o, 'auto'), hasattr(o, 'late')", "setattr(o, 'late', {i})",
    "delattr(o, 'late')", "r = o.__dict__.get('n')", "o.__dict__['n'] = {i}", "r = sorted(k for k in vars(o) if k not in ('v',))",
    "r = o == o2, o != o2, o < o2, o > o2", "r = o in [o2], [o2, o].index(o)", "r = hash(o)", "r = {{o: 1, o2: 2}}[o]",
    "r = str(o), repr(o), f'{{o}}', f'{{o!r:>8}}', f'{{o:x}}', '%s' % o, '%r' % (o,)", "r = bool(o), not o, len(o)", "r = list(o)",
    "r = [v for v in o][:2]", "r = {i} in o", "r = o[{i}]", "r = o[{i}:{j}:2]", "r = o[1, {i}]", "r = o[...]", "o[{i}] = {t}", "del o[{i}]",
    "r = o({t}, 1, k={i}, z=2)", "r = o + {i}", "r = {i} + o", "r = o + o2", "o += {i}", "r = o - 1", "r = 1 - o",
    "r = -o, abs(o), int(o), float(o), round(o), round(o, 2)", "r = [5, 6, 7][o]", "r = range(10)[o:]", "r = o @ o2, 3 @ o2", "r = divmod(o, {i})",
    "r = list(reversed(o))", "with o as q:\n    r = q.n\n    {risk}", "r = copy.copy(o).n", "o2 = copy.copy(o)", "o2 = o", "o.v = {t}",
    "o.shared.append({i})", "r = A.shared is o.shared, len(A.shared)", "o.shared = [{i}]", "r = sum([o, o2], start=0) if False else max(o, o2).n",
    "r = sorted([o, o2, A({t}, {i})])[0].n", "r = isinstance(o, B), issubclass(type(o), A), type(o) is B, isinstance(o, (int, C))",
    "r = type(o).__name__, type(o).__mro__[1].__name__, o.__class__.tag if hasattr(o.__class__, 'tag') else 0", "r = A.dyn_abc",
    "r = 'A' in A, len(A), list(B)", "r = Meta.made", "r = o.extra()", "o.__class__ = B", "r = callable(o), callable(A)", "r = B.step(o, {t})",
    "f = o.step\nr = f({t})", "f = functools.partial(o.step, {t})\nr = f()", "r = operator.attrgetter('n')(o)",
    "r = operator.methodcaller('step', {t})(o)", "r = o.step.__self__ is o, o.step == o.step, o.step is o.step",
    "r = super(B, o).prop if isinstance(o, B) else 0", "r = o.rest, o.n", "o2.n, o.n = o.n, {i}", "o.n += {i}", "o.n = o2.n = {i}",
    "r = [p.n for p in (o, o2)]", "x1 = o.n; o.n = x1 + 1; r = x1, o.n", "A.newattr = {i}\nr = o.newattr\ndel A.newattr",
    "r = A.__dict__['count'], 'step' in B.__dict__", "r = o.__class__({t}, {i}).n",
    "class L(A, tag={i}):\n    z = {i}\n    def step(self, t): return super().step(t) + self.z + k\nr = L({t}).step({t}), L.tag", "r = o.b",
    "o.b.append({i})", "s1 = {S}({i}, {t})", "s1.a += 1", "s1.c = {i}", "r = s1.c", "s1.zz = 1", "r = s1.a, hasattr(s1, 'c'), hasattr(s1, '__dict__')",
    "del s1.a", "d1 = D({t}, {i})", "d1.items.append({i})", "r = d1.total, d1.n", "r = D({t}, n={i}).items is D({t}).items",
    "d1 = dataclasses.replace(d1, n={i})", "r = F({i}, {j}) < F({i}), F({i}) == F({i}, t={t}), hash(F({i})) == hash(F({i}))",
    "r = F({i}).b, repr(F({i}, {j}))", "F(1).a = 2", "r = {{F({i}): 1}}.get(F({j}), 5)",
    "r = [f.name for f in dataclasses.fields(d1)], dataclasses.is_dataclass(d1)", "r = dataclasses.asdict(F({i}))",
    "r = dataclasses.astuple(F({i}, {j}))", "k1 = K(p={i}, q={t})\nr = k1.p", "K({i})",
    "nt = NT({t}, {i})\nr = nt.twice(), nt[1], nt._fields, len(nt), nt.n", "nt = nt._replace(n={i})", "r = nt._asdict()['n']", "a1, b1 = nt\nr = b1",
    "p = P({i})\nr = p.y, p + (1,), p == ({i}, 3), P._make([1, 2]).x, p.index(3)",
    "r = E({i} % 2 + 1).name, E.R.nxt().value, E.ALIAS is E.R, E['Gn'], len(E), [e.name for e in E]", "r = E({i})",
    "r = IE.LO + {i}, IE.HI > {i}, IE({i})", "r = (FL.X | FL.Y) & FL.X, bool(FL.X & FL.Y), FL.X in (FL.X | FL.Y), ~FL.X",
    "r = SE.one == 'one', SE('one').upper(), {{'one': 4}}[SE.one], f'{{SE.one.value}}'", "r = {{E.R: {i}}}[E.R], E.R == 1, IE.LO == 1",
    "ml = MyList([{i}]); ml.append({j}); r = ml[0], len(ml), ml + [1], ml[:1], list(ml), sum(ml)", "ml.extend([1, {i}]); r = ml.count(1), ml.pop()",
    "md = MyDict(a={i}); r = md[{i}], md.get(99), len(md), 'a' in md, sorted(map(str, md))", "md[{i}] = {t}",
    "md.update(q={i}); md.setdefault('z', {j}); r = list(md)",
    "r = MyInt({i}) + 1, MyInt({i}) * 2, -MyInt({i}), type(MyInt({i}) + 1).__name__, [1, 2, 3][MyInt(1)]",
    "r = MyStr('ab').upper(), MyStr('a') + 'b', MyStr('x') == 'x', type(MyStr('a')[:1]).__name__",
    "mt = MyTuple({i}, {j}); r = mt[0], mt[:1], len(mt), mt == ({i}, {j}), type(mt + (1,)).__name__, hash(mt) == hash(({i}, {j}))",
    "r = Single({i}) is Single({j}), Single.inst.n", "r = isinstance(HasGo(), Bor), issubclass(A, Bor)", "Bor()", "r = Gen[int]",
    "r = isinstance({i}, numbers.Number), isinstance([], collections.abc.Sequence), isinstance({{}}, collections.abc.Mapping), isinstance(o, collections.abc.Iterable), isinstance(len, collections.abc.Callable)",
    "r = decorated({t}, {i}), decorated.calls, decorated.__name__", "r = mutdef({t}), len(mutdef.__defaults__[0])",
    "r = sd({i}), sd([{i}]), sd(o)[0], sd('s'), sd(True)", "r = lru({i}), lru({i}, m={j}), lru.cache_info().hits >= 0",
    "inc, get = counter(); inc(); inc({i}); r = get()", "r = inc({i}), get()", "r = finret({i}), looper({i} % 6)", "r = kw({i}, 2, 3, e={j}, z=1, y=2)",
    "r = kw(1, *[2, {i}], **{{'e': {j}}})", "kw(1, b=2)", "kw()", "r = kw(*({i},) * 3, e=1, d={j})",
    "fs = [lambda: i1 for i1 in range(3)]; r = [fn() for fn in fs]", "fs = [lambda i1=i1: i1 + {i} for i1 in range(3)]; r = [fn() for fn in fs]",
    "def rec(n): return 1 if n <= 1 else n * rec(n - 1)\nr = rec({i} % 7)",
    "def ff(a, b={i}, *, c={j}): return a, b, c\nr = ff(1), ff(1, 2, c=3), ff.__defaults__, ff.__kwdefaults__", "ff.__defaults__ = ({j},)\nr = ff(0)",
    "ff.attr = getattr(ff, 'attr', 0) + 1\nr = ff.attr", "r = (lambda *a, **k: (a, k))(*[{i}], **{{'z': {j}}})",
    "r = functools.reduce(lambda a, b: a * 2 + b, [{i}, {j}, 3])", "r = list(map(operator.add, [{i}, 2], [3, {j}]))",
    "r = functools.partial(kw, {i}, e=1)(2, d=9)", "r = eval('{i} + 1')", "r = sorted(locals().keys())[:3]", "r = globals()['G']['n']", "G['n'] += {i}",
    "G['t'] = {t}", "global TOTAL\nTOTAL += {i}", "LOG.append({i})", "r = (y1 := {i}) + y1", "r = [y2 := v * 2 for v in [{i}, {j}]], y2",
    "r = {{v: w for v, w in zip('ab', [{i}, {j}])}}", "r = [(a, b) for a in range({i} % 4) for b in range(a) if (a + b) % 2]",
    "r = {{v % 3 for v in [{i}, {j}, 7]}}", "r = sum(v for v in (w * 2 for w in range({i} % 5)))", "x, = [x]",
    "a1, *b1, c1 = [{i}, {j}, 3, {i}]\nr = a1, b1, c1", "(a1, (b1, *c1)), d2 = ({i}, [1, 2, 3]), {j}\nr = b1, c1, d2",
    "a1 = b1 = [{i}]; a1 += [1]; r = b1, a1 is b1", "a1 = b1 = ({i},); a1 += (1,); r = b1, a1 is b1", "i1 = 0\nlst[i1], i1 = {i}, 1\nr = i1",
    "r = 'a' if {i} > 2 else 'b' if {j} else 'c'", "r = {i} < {j} < 5, {i} == {i} != {j}", "r = not {i}, {i} or 'z', {i} and 'y'",
    "assert {i} < 90, f'big {i}'", "del y1", "r = y1", "g = gen({t}, 3)", "r = next(g)", "r = next(g, 'none')", "r = g.send({i})",
    "r = g.throw(ValueError('thrown'))", "g.close()", "r = list(g)", "g = outer({t}, 2)", "for q in g:\n    r = q\n    break",
    "r = [v for v in gen({t}, 2)]", "g = (v * {i} for v in lst)", "r = list(zip(gen({t}, 2), [1, 2, 3]))",
    "try:\n    while True: r = next(g)\nexcept StopIteration as e:\n    r = e.value", "*r, = gen({t}, 2)", "r = max(gen({i}, 3))",
    "a1, b1 = gen({t}, 2)\nr = a1", "r = dict(zip('ab', gen({t}, 2)))['a']", "r = sum(gen({t}, 2))", "r = g.gi_running, g.gi_frame is None",
    "it = iter(lst)", "r = next(it)", "r = next(it, 0), list(it)", "it = iter(dct)\nr = next(it, None)", "it = enumerate(lst, {i})\nr = next(it, None)",
    "it = reversed(lst)\nr = next(it, None)", "itc = itertools.count({i}, 2)\nr = next(itc), next(itc)",
    "it = itertools.islice(itertools.cycle(lst), 3)\nr = list(it)", "i1, i2 = itertools.tee(lst)\nr = next(i1, 0), list(i2)",
    "r = [(k1, list(v1)) for k1, v1 in itertools.groupby(sorted(lst2), key=lambda v: v % 2)]",
    "r = list(itertools.permutations([{i}, {j}, 1], 2))[:3], list(itertools.combinations(range({i} % 4), 2))",
    "r = list(itertools.accumulate([{i}, {j}, 2], operator.mul, initial=1))",
    "r = list(itertools.compress([{i}, 2, 3], [1, 0, {j}])), list(itertools.dropwhile(lambda v: v < {i}, [1, 9, 2]))",
    "r = list(itertools.zip_longest([1], [{i}, 2], fillvalue=0)), list(itertools.batched([1,2,3], 2)) if hasattr(itertools, 'batched') else 0",
    "r = list(itertools.starmap(pow, [(2, {i} % 5), (3, 2)])), list(itertools.repeat({i}, 2)), list(itertools.filterfalse(None, [0, {i}]))", "{risk}",
    "try:\n    {risk}\nexcept (KeyError, IndexError) as e:\n    r = repr(e)\nelse:\n    r = 'else'\nfinally:\n    log('finally')",
    "try:\n    {risk}\nexcept MyErr2 as e:\n    r = e.code\nexcept ValueError as e:\n    r = e.args\n",
    "try:\n    {risk}\nexcept Exception as e:\n    raise MyErr({i}) from e",
    "try:\n    {risk}\nexcept Exception as e:\n    try:\n        raise MyErr({i})\n    except MyErr as e2:\n        r = repr(e2.__context__), e2.__cause__, e2.code",
    "try:\n    {risk}\nexcept Exception as e:\n    e.add_note('n')\n    raise",
    "try:\n    {risk}\nexcept Exception as e:\n    keep = e\nr = repr(keep)",
    "try:\n    raise ExceptionGroup('g', [ValueError({i}), KeyError(2)])\nexcept* ValueError as eg:\n    r = eg.exceptions[0].args\nexcept* KeyError as eg:\n    log(str(eg))",
    "try:\n    raise ValueError({i}) from None\nexcept ValueError as e:\n    r = e.__suppress_context__",
    "with contextlib.suppress(KeyError, ValueError):\n    {risk}\n    log('after')", "with cm('a', True) as nm:\n    r = nm\n    {risk}",
    "with cm('a'), cm('b', {i} > 2):\n    {risk}",
    "with contextlib.ExitStack() as st:\n    st.enter_context(cm('s', True))\n    st.callback(log, 'cb', {i})\n    st.push(o)\n    {risk}",
    "with contextlib.nullcontext({i}) as r: pass", "with contextlib.closing(types.SimpleNamespace(close=lambda: log('closed'))) as q:\n    {risk}",
    "try:\n    try:\n        {risk}\n    finally:\n        log('inner')\nexcept Exception as e:\n    r = type(e).__name__, str(e)",
    "for i1 in range(3):\n    try:\n        if i1 == {i}: continue\n        {risk}\n    except Exception:\n        break\n    finally:\n        log('f', i1)\nelse:\n    log('else')",
    "try:\n    r = 1\nexcept:\n    r = 2\nelse:\n    r = 3\n    {risk}\nfinally:\n    r = 4",
    "e = MyErr({i}, 'x'); r = e.args, e.code, str(e), repr(e)", "r = isinstance(MyErr2(1), ValueError), MyErr2({i}).code", "raise MyErr({i})",
    "raise MyErr", "raise 3", "raise ValueError({i}) if {i} > 3 else KeyError({j})", "lst.append({i})", "lst.insert({i}, {j})", "r = lst.pop({i})",
    "lst.remove({i})", "lst[{i}:{j}] = [1, {i}]", "lst[::2] = [0] * len(lst[::2])", "del lst[::3]", "lst[1:1] = [{i}]", "lst *= 2", "lst += [{i}]",
    "lst += ({j},)", "lst.sort(key=lambda v: -v)", "lst.sort(reverse=True)", "lst.reverse()", "lst2 = lst", "lst2 = lst[:]", "lst2 = list(lst)",
    "lst2 = sorted(lst)", "r = lst is lst2, lst == lst2", "lst2.append({i})", "lst.extend(lst2)", "lst.clear()", "lst = [{i}, {j}, 3]",
    "r = lst[{i}], lst[-1]", "r = lst.index({i}), lst.count({j})", "lst[{i}] = {j}", "del lst[{i}]", "r = [lst] * 2; r[0] is r[1]",
    "for v in lst:\n    if v > {i} and len(lst) < 9: lst.append(0)", "for v in list(lst):\n    if v % 2: lst.remove(v)",
    "r = lst < lst2, lst + lst2, lst * 2 == lst2", "r = max(lst, default=0), min(lst + [{i}]), sum(lst, {j})", "lst[len(lst):] = lst2",
    "dct[{i}] = {t}", "dct['{a}'] = {i}", "r = dct['{a}']", "r = dct.get({i}), dct.get('{a}', {j})", "r = dct.pop('{a}')", "r = dct.pop({i}, 0)",
    "r = dct.popitem()[0]", "dct.update({{'{a}': {i}}}, z={j})", "r = dct.setdefault('{a}', []) ", "dct |= {{'{a}': {i}}}",
    "r = list((dct | {{1: 2}}).keys())", "dct2 = dct", "dct2 = dict(dct)", "del dct['{a}']", "r = list(dct), list(dct.keys()), len(dct)",
    "r = {i} in dct, '{a}' in dct.keys(), dct.keys() & {{'a', {i}}}", "r = [k1 for k1, v1 in dct.items()]",
    "for k1 in dct:\n    if k1 == {i}: dct[k1] = 0", "for k1 in dct:\n    dct[str(k1) + 'z'] = 1", "dct = {{'a': {i}, {j}: 2}}",
    "r = dict.fromkeys([{i}, 'x'], {j})", "r = dct == dct2, dct is dct2", "dct.clear()", "kv = dct.keys(); dct['new'] = {i}; r = len(kv), 'new' in kv",
    "r = list(reversed(dct))", "dct[True] = {i}; r = dct.get(1), list(dct)[-1]", "dct[1.0] = {i}; r = len(dct)",
    "dct[({i}, 2)] = 1; r = ({i}, 2) in dct", "dct[[1]] = 2", "dd = defaultdict(list); dd[{i}].append({j}); r = dict(dd), dd[9], len(dd)",
    "dd = defaultdict(int, a={i}); dd['a'] += 1; dd[{j}] += 2; r = dict(dd)", "dd['q'] = dd['r']; r = len(dd)",
    "ct = Counter([{i}, {j}, {i}]); r = ct.most_common(1), ct[99], ct.total()",
    "ct.update([{i}]); ct.subtract({{{j}: 1}}); r = dict(ct), sorted(ct.elements())", "r = ct + Counter([1]), ct & ct, -ct, ct == Counter([{i}])",
    "od = OrderedDict(a=1, b={i}); od.move_to_end('a'); r = list(od), od.popitem(last=False)",
    "od['c'] = {i}; r = list(reversed(od)), od == {{'c': 1}}", "cm1 = ChainMap({{'a': {i}}}, dct); r = cm1['a'], len(cm1), cm1.get('zz')",
    "cm1['new'] = {j}; r = cm1.maps[0], 'new' in dct", "cm2 = cm1.new_child(); cm2['a'] = 0; r = cm1['a'], cm2.parents['a']",
    "dq = deque([{i}, {j}], maxlen=3); dq.append(1); dq.appendleft(2); r = list(dq), dq.maxlen", "dq.rotate({i}); r = dq[0], list(dq)",
    "dq.extendleft([{i}, {j}]); r = dq.pop(), len(dq)", "r = dq.popleft()", "dq[0] = {i}; r = dq.count({i}), {i} in dq", "dq.insert(0, {i})",
    "dq.remove({i})", "st1 = {{{i}, {j}}}; st1.add(3); r = sorted(st1), {i} in st1",
    "st1 |= {{{i}}}; st1 -= {{3}}; r = sorted(st1 ^ {{1, 2}}), st1 <= {{1, 2, 3}}, st1.isdisjoint([{i}])", "st1.discard({i}); r = len(st1)",
    "st1.remove({i})", "r = frozenset([{i}]) | {{2}}, {{frozenset([{i}]): 1}}[frozenset([{i}])]", "r = st1 & set(lst), st1.union(lst, [{i}])",
    "r = sorted(st1.symmetric_difference(lst))", "tp = ({i}, {j}, {t}); r = tp[:2], tp[-2], len(tp), tp[0] in tp[:2]",
    "r = ({i}, 2) + (3,), ({i},) * 3, ({i}, 2) < ({j}, 1), ({i}, 1).index(1)",
    "hp = [{i}, {j}, 5, 2]; heapq.heapify(hp); heapq.heappush(hp, {i}); r = heapq.heappop(hp), heapq.nsmallest(2, hp)",
    "r = bisect.bisect([1, 3, 5], {i}), bisect.bisect_left([1, {i}, 50], {j})",
    "ns = types.SimpleNamespace(a={i}, t={t}); ns.b = {j}; r = ns.a, vars(ns)['b']", "ns.a += 1; r = ns.a, ns == types.SimpleNamespace(a=1)",
    "mp = types.MappingProxyType(dct); r = mp.get({i}), len(mp)", "mp['a'] = 1", "lst3 = [[]] * 2; lst3[0].append({i}); r = lst3",
    "lst3 = [lst, lst]; lst3[0].append({i}); r = len(lst3[1])", "dct['self'] = lst; lst.append({j}); r = dct['self'] is lst",
    "nested = {{'a': [{{'b': ({i}, [{j}])}}]}}; nested['a'][0]['b'][1].append(1); r = nested", "r = copy.copy(lst3), copy.deepcopy([lst])[0] is lst",
    "r = zip(*[(1, {i}), (2, {j})]); r = list(r)", "r = [*lst, *dct, *'ab'], {{**dct, 'k': {i}}}",
    "r = list(enumerate(lst, {i}))[:2], list(filter(None, lst)), any(lst), all(lst)",
    "r = slice({i}, {j}).indices(5), range({i}, 20, 3)[1:], range({i})[-1:], {i} in range(0, 9, 2), range(3) == range(0, 3)",
    "r = memoryview(b'abc')[1], bytes([{i} % 99, 2]), bytearray(b'ab')[0], b'a' + b'b', 'é'.encode()",
    "r = 'a,b,{i}'.split(','), '{i}'.zfill(4), 'ab'.center(7, '*'), 'x'.join(['1', str({i})])",
    "r = f'{{{i}:05d}}|{{{i}:<4}}|{{{j}:^5}}|{{{i} / 4:.1f}}'", "r = '%s %d %5.1f %x' % ({i}, {j}, {i} / 2, {i})",
    "r = '{{0}} {{a}} {{1:>3}}'.format({i}, {j}, a=2), '{{0[1]}}'.format([1, {i}])",
    "r = 'Hello'.translate(str.maketrans('l', '{a}')), 'a-b'.partition('-'), 'AbC'.swapcase(), 'tEst'.title()",
    "r = 'abc'.find('{a}'), 'abcabc'.rindex('b'), 'abc'.startswith(('a', 'z')), 'aXb'.casefold(), ' x '.strip()",
    "r = re.sub(r'\\d', 'n', 'a{i}b'), re.match(r'(\\w)(\\d+)', 'a{i}').groups()",
    "r = string.Template('$a').substitute(a={i}), string.ascii_letters[{i}]", "r = 'abc' > '{a}', 'ab' * {i}, 'abc'['x' == '{a}':], ord('{a}') + {i}",
    "r = int('{i}'), float('{i}.5'), int('ff', 16), int('z')", "r = str([{i}, 'a', None, 1.5, (1,), {{2: 3}}]), repr(o), ascii('é')",
    "r = str({i}).isdigit(), 'a1'.isalnum(), 'A'.isupper(), '{a}'.isidentifier()", "r = f'{{lst}} {{dct.keys()}} {{len(lst)=}}'",
    "print('x', {i}, sep='-')",
    "match lst:\n    case []: r = 'empty'\n    case [a1]: r = a1\n    case [a1, *b1] if a1 > {i}: r = b1\n    case [int(a1), _, *_]: r = ('int', a1)",
    "match {i}:\n    case 1 | 2: r = 'low'\n    case int(v) if v < {j}: r = v\n    case _: r = 'big'",
    "match o:\n    case C(n=a1): r = ('C', a1)\n    case B(b=[a1, *_]): r = ('B', a1)\n    case A(n=1): r = 'one'\n    case A(): r = 'A'",
    "match dct:\n    case {{'a': int(a1), **rest}}: r = a1, len(rest)\n    case {{'x': _}}: r = 'x'\n    case _: r = 0",
    "match nt:\n    case NT(t, n): r = n", "match F({i}, {j}):\n    case F(1, b1): r = b1\n    case F(a=a1, b=2): r = a1\n    case F(): r = 'f'",
    "match (lst, {i}):\n    case ([_, _], a1): r = a1\n    case (list() as l1, 3 | 4): r = len(l1)\n    case _: r = None",
    "match E({i} % 2 + 1):\n    case E.R: r = 'red'\n    case E.Gn: r = 'green'",
    "match '{a}':\n    case 'a' | 'b' as m1: r = m1\n    case str(): r = 'str'", "x = x + {i}", "x = x * {t}.mean()", "r = {t}.sin()",
    "y = x.clone(); y.add_({i}); r = y", "z.add_({i})", "z[0] = {i}", "r = z is y, x is x", "r = [{t}, x][{i} % 2]",
    "r = x.shape[0] + {i}, len(x), x.size()", "lst4 = [x, y]; lst4[0] = lst4[1]; r = lst4", "r = x in [x], [y, x].index(x) if y is x else 0",
    "d4 = {{x: 1}}; r = d4[x], x in d4, y in d4", "x.tag = {i}\nr = x.tag", "r = hasattr(z, 'tag'), getattr(z, 'tag', 0)", "z.tag = [{i}]",
    "r = id(x) == id(x), id(x) == id(y)", "wr = weakref.ref(o)\nr = wr() is o", "r = max([x, y], key=lambda t: {i}) is x",
    "r = torch.stack([x, y]).sum({i} % 2)", "bothways.graph_break()",
]  # fmt: skip
RISKS = [
    "pass", "pass", "r = lst[99]", "r = dct['missing']", "raise ValueError({i})", "raise MyErr({i})", "raise MyErr2({j}, 'q')",
    "r = {i} // ({j} - {j})", "r = int('zz')", "o.absent", "raise KeyError('kk')", "r = [][0]", "if {i} > 2: raise ValueError('big')",
    "if {i} < 3: raise KeyError({i})", "undefined", "r = None + 1", "r = next(iter(()))", "bothways.graph_break()", "log('risk')", "a1, b1 = [1]",
    "x.nothing", "torch.ones(2) @ torch.ones(3)", "assert {i} == 3, 'as'", "return_early = 1",
]  # fmt: skip
VALUES = {
    "i": ["k", "j", "k", "1", "2", "3", "0", "len(lst)", "k + 1", "o.n", "x.shape[0]"],
    "j": ["j", "k", "1", "4", "-1", "j + 1"],
    "t": ["x", "y", "z", "x * 2", "z.detach()", "o.v"],
    "cls": ["A", "B", "C"],
    "S": ["S", "S2"],
    "a": ["a", "b", "z", "q"],
}
HOLE = re.compile(r"(?<!\{)((?:\{\{)*)\{(i|j|t|cls|S|a)\}")

HEAD = """
STATE = ["LOG", "G", "REG", "TOTAL", "Single"]
GIVEN = {given}

def make(call):
    k, j, n, needs_grad = GIVEN[call]
    LOG.clear()
    x, z = torch.randn(n, n).requires_grad_(needs_grad), torch.randn(n, n)
    return x, z, k, j, [k, 3, j], {{"a": [1], "b": z, k: j}}, B(z, k) if j > 2 else A(x, j)

def watched():
    return A.count, B.count, C.count, A.shared, Meta.made, mutdef.__defaults__, decorated.calls

def target(x, z, k, j, lst, dct, o):
    global TOTAL
    res = []
    y = x * 2
    o2, lst2, dct2, s1, d1 = B(z, j), [1], {{}}, S(1), D(x)
"""
END = "\n    return res, x, y, o, o2, lst, dct, lst2, dct2, s1, d1, watched()\n"


def filled(source: random.Random, template: str) -> str:
    """A template with every hole filled."""

    def value(hole: re.Match[str]) -> str:
        text = source.choice(VALUES[hole[2]])
        return hole[1] + (text if re.fullmatch(r"-?\w+", text) else f"({text})")

    before, risky, after = template.partition("{risk}")
    text = HOLE.sub(value, before).replace("{{", "{").replace("}}", "}")
    return text + filled(source, source.choice(RISKS)) + filled(source, after) if risky else text


def shown(source: random.Random, text: str) -> str:
    """A statement with what it has to show, mostly where an error of it is caught."""
    if source.random() < 0.8 or "raise" in text:
        inside = text.replace("\n", "\n    ")
        caught = "except Exception as err:\n    res.append((type(err).__name__, str(err)))"
        return f"try:\n    r = None\n    {inside}\n    res.append(r)\n{caught}"
    return f"r = None\n{text}\nres.append(r)"


def program(source: random.Random, statements: int = 26) -> str:
    """The source of one program; half of its statements are near each other in the table, so that they meet."""
    first, lines = source.randrange(len(STATEMENTS)), []
    for _ in range(statements):
        place = source.randrange(len(STATEMENTS)) if source.random() < 0.5 else first + source.randrange(60)
        text = filled(source, STATEMENTS[place % len(STATEMENTS)]).replace("global TOTAL\n", "")
        lines.append(shown(source, text))
    calls = [
        (source.choice([3, 4, 2, 0, 1, 5]), source.choice([3, -4, 2, 0, 6, 1]), source.choice([2, 3, 4]), source.random() < 0.3)
        for _ in range(3)
    ]  # fmt: skip
    body = "\n".join(lines).replace("\n", "\n    ")
    return f"{PRELUDE}{HEAD.format(given=[calls[0], *calls])}    {body}{END}"
