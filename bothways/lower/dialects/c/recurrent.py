"""Layers of recurrent networks over packed sequences in C: all steps of a layer in one call, and all of its backward.

A step's rows are those of the sequences that are not over yet. How many there are is data, which the loop over the
steps reads. Products are calls of BLAS as ATen makes them; what ATen does to gates in a dozen operations is one loop.
Weights' gradients are products over all rows, where autograd adds up those of the steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from bothways.building.build import CSource, library_of
from bothways.building.loading import Library
from bothways.lower.dialects.c.prelude import HELPERS
from bothways.lower.dialects.c.products import BINDING, bound, can_multiply


@dataclass(frozen=True)
class RecurrentCell:
    """What a step does to one row. ``gates``: how many there are; ``extra``: how many rows more its backward reads.

    ``is_apart``: gradients of what the gates get from the hidden state are others than of what they get from the input.
    """

    gates: int
    extra: int
    is_apart: bool
    forward: str
    backward: str

    def kept(self, rows: int, hidden: int) -> int:
        """How many numbers the backward reads."""
        return rows * hidden * (self.gates + 1 + self.extra)

    def scratch(self, rows: int, hidden: int) -> int:
        """How many numbers the backward writes on its way."""
        return hidden * self.gates * (rows * (1 + self.is_apart) + 1)

    def __str__(self) -> str:
        numbers = f"enum {{ GATES = {self.gates}, IS_APART = {int(self.is_apart)} }};\n"
        return "\n".join([numbers, SHARED, CELLS.format(body=self.forward), BACK.format(body=self.backward), LAYER])


# ``batches``: how many rows each step has. ``far``: how many numbers lie between two rows of the output.
SHARED = """\
enum { LEAST = 1 << 15, SUMMED = 64 };

typedef struct {
    const int64_t *batches;
    int64_t steps, rows, batch, inputs, hidden, far, reverse;
} Layer;

static Layer layer_of(const Given *given) {
    const Layer layer = {
        given[0].pointer, given[1].number, given[2].number, given[3].number, given[4].number, given[5].number,
        given[6].number, given[7].number
    };
    return layer;
}

static __attribute__((noinline)) void copy_floats(float *to, const float *from, int64_t count) {
    for (int64_t at = 0; at < count; ++at) to[at] = from ? from[at] : 0;
}

// Rows by a weight, to which the bias is there first, as in ATen.
static __attribute__((noinline)) void linear(
    const float *rows, int64_t count, int64_t inner, const float *weight, const float *bias, int64_t columns, float *to
) {
    if (bias)
        for (int64_t row = 0; row < count; ++row) copy_floats(to + row * columns, bias, columns);
    multiply(count, inner, columns, rows, inner, 1, weight, 1, inner, to, bias != 0);
}

// A few rows at a time: one long sum of many would be less precise than ATen's.
static __attribute__((noinline)) void sum_of_rows(
    const float *from, int64_t rows, int64_t columns, float *few, float *to
) {
    copy_floats(to, 0, columns);
    for (int64_t first = 0; first < rows; first += SUMMED) {
        const int64_t last = first + SUMMED < rows ? first + SUMMED : rows;
        copy_floats(few, 0, columns);
        for (int64_t row = first; row < last; ++row)
            for (int64_t at = 0; at < columns; ++at) few[at] += from[row * columns + at];
        for (int64_t at = 0; at < columns; ++at) to[at] += few[at];
    }
}
"""

# The rows of a step. ``found`` is what the hidden state gives the gates, ``plane`` how far apart extra rows lie.
CELLS = """\
static __attribute__((noinline)) void cells(
    int64_t rows, int64_t hidden, const float *found, float *gates, float *extra, int64_t plane, float *h, float *c,
    float *out, int64_t far
) {{
#pragma omp parallel for if(parallel : rows * hidden >= LEAST) schedule(static)
    for (int64_t row = 0; row < rows; ++row) {{
        float *gate = gates + row * GATES * hidden, *kept = extra + row * hidden;
        float *one = h + row * hidden, *cell = c + row * hidden, *to = out + row * far;
        const float *more = found + row * GATES * hidden;
#pragma omp simd
        for (int64_t at = 0; at < hidden; ++at) {{
{body}
        }}
    }}
}}
"""
# ``one`` is the gradient of the hidden state, which becomes that of the state before where no product writes it.
BACK = """\
static __attribute__((noinline)) void cells_back(
    int64_t rows, int64_t hidden, const float *gates, const float *shown, const float *extra, int64_t plane, float *h,
    float *c, const float *out, int64_t far, float *made, float *apart
) {{
#pragma omp parallel for if(parallel : rows * hidden >= LEAST) schedule(static)
    for (int64_t row = 0; row < rows; ++row) {{
        const float *gate = gates + row * GATES * hidden, *kept = extra + row * hidden, *was = shown + row * hidden;
        const float *other = out ? out + row * far : 0;
        float *one = h + row * hidden, *cell = c + row * hidden;
        float *to = made + row * GATES * hidden, *more = apart + row * GATES * hidden;
#pragma omp simd
        for (int64_t at = 0; at < hidden; ++at) {{
            const float grad = other ? one[at] + other[at] : one[at];
{body}
        }}
    }}
}}
"""

LAYER = """\
void forward(const Given *given) {
    const Layer layer = layer_of(given);
    const float *data = given[8].pointer, *first_h = given[9].pointer, *first_c = given[10].pointer;
    const float *of_input = given[11].pointer, *of_hidden = given[12].pointer;
    const float *input_bias = given[13].pointer, *hidden_bias = given[14].pointer;
    float *out = given[15].pointer, *h = given[16].pointer, *c = given[17].pointer;
    float *gates = given[18].pointer, *found = given[19].pointer;
    const int64_t hidden = layer.hidden, rows = layer.rows, wide = GATES * hidden, plane = rows * hidden;
    float *shown = gates + rows * wide, *extra = shown + plane;
    copy_floats(h, first_h, layer.batch * hidden);
    if (c) copy_floats(c, first_c, layer.batch * hidden);
    linear(data, rows, layer.inputs, of_input, input_bias, wide, gates);
    int64_t row = layer.reverse ? rows : 0;
    for (int64_t step = 0; step < layer.steps; ++step) {
        const int64_t count = layer.batches[layer.reverse ? layer.steps - 1 - step : step];
        if (layer.reverse) row -= count;
        copy_floats(shown + row * hidden, h, count * hidden);
        linear(h, count, hidden, of_hidden, hidden_bias, wide, found);
        cells(
            count, hidden, found, gates + row * wide, extra + row * hidden, plane, h, c, out + row * layer.far,
            layer.far
        );
        if (!layer.reverse) row += count;
    }
}

void backward(const Given *given) {
    const Layer layer = layer_of(given);
    const float *data = given[8].pointer, *of_input = given[9].pointer, *of_hidden = given[10].pointer;
    const float *gates = given[11].pointer, *out = given[12].pointer;
    const float *last_h = given[13].pointer, *last_c = given[14].pointer;
    float *h = given[15].pointer, *c = given[16].pointer, *into_data = given[17].pointer;
    float *into_input = given[18].pointer, *into_hidden = given[19].pointer;
    float *into_input_bias = given[20].pointer, *into_hidden_bias = given[21].pointer, *made = given[22].pointer;
    const int64_t adds = given[23].number;
    const int64_t hidden = layer.hidden, rows = layer.rows, wide = GATES * hidden, plane = rows * hidden;
    const float *shown = gates + rows * wide, *extra = shown + plane;
    float *apart = IS_APART ? made + rows * wide : made, *few = apart + rows * wide;
    copy_floats(h, last_h, layer.batch * hidden);
    if (c) copy_floats(c, last_c, layer.batch * hidden);
    int64_t row = layer.reverse ? 0 : rows;
    for (int64_t step = 0; step < layer.steps; ++step) {
        const int64_t count = layer.batches[layer.reverse ? step : layer.steps - 1 - step];
        if (!layer.reverse) row -= count;
        cells_back(
            count, hidden, gates + row * wide, shown + row * hidden, extra + row * hidden, plane, h, c,
            out ? out + row * layer.far : 0, layer.far, made + row * wide, apart + row * wide
        );
        multiply(count, wide, hidden, apart + row * wide, wide, 1, of_hidden, hidden, 1, h, IS_APART);
        if (layer.reverse) row += count;
    }
    if (into_data) multiply(rows, wide, layer.inputs, made, wide, 1, of_input, layer.inputs, 1, into_data, adds);
    if (into_input) multiply(wide, rows, layer.inputs, made, 1, wide, data, layer.inputs, 1, into_input, 0);
    if (into_hidden) multiply(wide, rows, hidden, apart, 1, wide, shown, hidden, 1, into_hidden, 0);
    if (into_input_bias) sum_of_rows(made, rows, wide, few, into_input_bias);
    if (!into_hidden_bias) return;
    if (into_input_bias && !IS_APART) copy_floats(into_hidden_bias, into_input_bias, wide);
    else sum_of_rows(apart, rows, wide, few, into_hidden_bias);
}
"""

LSTM = RecurrentCell(
    gates=4,
    extra=2,
    is_apart=False,
    forward="""\
            const float in = 1 / (1 + expf(-(more[at] + gate[at])));
            const float forget = 1 / (1 + expf(-(more[hidden + at] + gate[hidden + at])));
            const float fresh = tanhf(more[2 * hidden + at] + gate[2 * hidden + at]);
            const float over = 1 / (1 + expf(-(more[3 * hidden + at] + gate[3 * hidden + at])));
            const float before = cell[at], now = forget * before + in * fresh, bent = tanhf(now), gives = over * bent;
            gate[at] = in, gate[hidden + at] = forget, gate[2 * hidden + at] = fresh, gate[3 * hidden + at] = over;
            kept[at] = before, kept[plane + at] = bent, cell[at] = now, one[at] = gives, to[at] = gives;""",
    backward="""\
            const float in = gate[at], forget = gate[hidden + at], fresh = gate[2 * hidden + at];
            const float over = gate[3 * hidden + at], before = kept[at], bent = kept[plane + at];
            const float of_cell = cell[at] + grad * over * (1 - bent * bent);
            to[at] = of_cell * fresh * (1 - in) * in;
            to[hidden + at] = of_cell * before * (1 - forget) * forget;
            to[2 * hidden + at] = of_cell * in * (1 - fresh * fresh);
            to[3 * hidden + at] = grad * bent * (1 - over) * over;
            cell[at] = of_cell * forget;""",
)
GRU = RecurrentCell(
    gates=3,
    extra=1,
    is_apart=True,
    forward="""\
            const float reset = 1 / (1 + expf(-(more[at] + gate[at])));
            const float stays = 1 / (1 + expf(-(more[hidden + at] + gate[hidden + at])));
            const float held = more[2 * hidden + at], fresh = tanhf(gate[2 * hidden + at] + held * reset);
            const float gives = (one[at] - fresh) * stays + fresh;
            gate[at] = reset, gate[hidden + at] = stays, gate[2 * hidden + at] = fresh;
            kept[at] = held, one[at] = gives, to[at] = gives;""",
    backward="""\
            const float reset = gate[at], stays = gate[hidden + at], fresh = gate[2 * hidden + at];
            const float straight = grad * stays, bent = (grad - straight) * (1 - fresh * fresh);
            to[at] = more[at] = bent * kept[at] * (1 - reset) * reset;
            to[hidden + at] = more[hidden + at] = grad * (was[at] - fresh) * (1 - stays) * stays;
            to[2 * hidden + at] = bent, more[2 * hidden + at] = bent * reset;
            one[at] = straight;""",
)
RNN_TANH = RecurrentCell(
    gates=1,
    extra=0,
    is_apart=False,
    forward="            gate[at] = one[at] = to[at] = tanhf(more[at] + gate[at]);",
    backward="            to[at] = grad * (1 - gate[at] * gate[at]);",
)
RNN_RELU = RecurrentCell(
    gates=1,
    extra=0,
    is_apart=False,
    forward="""\
            const float sum = more[at] + gate[at];
            gate[at] = one[at] = to[at] = sum < 0 ? 0 : sum;""",
    backward="            to[at] = gate[at] <= 0 ? 0 : grad;",
)
# By the names of PyTorch's operations.
CELLS_OF = {"lstm": LSTM, "gru": GRU, "rnn_tanh": RNN_TANH, "rnn_relu": RNN_RELU}


def library(cell: RecurrentCell) -> Library | None:
    """``forward`` and ``backward`` of layers of such cells; None where BLAS is not to be had, or the compiler fails
    with NoCompiler or BuildFailed."""
    if not can_multiply():
        return None
    built = library_of(CSource((), (f"{BINDING}{cell}",), HELPERS))
    return built if bound(built) else None
