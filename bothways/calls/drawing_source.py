"""The C that draws what a dropout keeps: the numbers of PyTorch's generator for CPUs, many at a time.

ATen draws one number after the other, and asks for each whether there are numbers left. The generator is a Mersenne
Twister of 624 words, which follow from the last ones by operations on vectors; so do the numbers from these.
"""

from __future__ import annotations

WORDS = 624

# ``draw`` is given the state of a generator as ``get_state`` writes it down, room for the one that follows, a mask, how
# many truths it has, and below which number of 53 bits one is true.
DRAWING = f"""\
enum {{ WORDS = {WORDS}, AHEAD = 397, BEHIND = WORDS - AHEAD }};
typedef struct {{ uint64_t seed; int32_t left, seeded; uint64_t next, words[WORDS], others[]; }} State;
""" """\

static inline uint32_t twisted(uint32_t one, uint32_t other) {
    return (((one & 0x80000000u) | (other & 0x7fffffffu)) >> 1) ^ (-(other & 1u) & 0x9908b0dfu);
}

static void renew(uint32_t *words) {
    for (int i = 0; i < BEHIND; ++i) words[i] = words[i + AHEAD] ^ twisted(words[i], words[i + 1]);
    for (int i = BEHIND; i < WORDS - 1; ++i) words[i] = words[i - BEHIND] ^ twisted(words[i], words[i + 1]);
    words[WORDS - 1] = words[AHEAD - 1] ^ twisted(words[WORDS - 1], words[0]);
}

static void temper(const uint32_t *words, uint32_t *drawn, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        uint32_t word = words[i];
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c5680u;
        word ^= (word << 15) & 0xefc60000u;
        drawn[i] = word ^ (word >> 18);
    }
}

// Two numbers of 32 bits are one of 64, of which 53 count.
static void compare(const uint32_t *drawn, uint8_t *mask, int64_t count, int64_t below) {
    for (int64_t i = 0; i < count; ++i) {
        const int64_t number = (int64_t)(drawn[2 * i] & 0x1fffffu) << 32 | drawn[2 * i + 1];
        mask[i] = number < below;
    }
}

void draw(const Given *given) {
    const State *before = given[0].pointer;
    State *after = given[1].pointer;
    uint8_t *mask = given[2].pointer;
    const int64_t count = given[3].number, below = given[4].number;
    uint32_t words[WORDS], drawn[WORDS + 1];
    for (int i = 0; i < WORDS; ++i) words[i] = before->words[i];
    int64_t at = before->next < WORDS ? before->next : WORDS, left = before->left - 1, kept = 0;
    if (left < 0 || left > WORDS - at) left = WORDS - at;
    for (int64_t done = 0; done < count;) {
        if (!left) {
            renew(words);
            left = WORDS;
            at = 0;
        }
        const int64_t wanted = 2 * (count - done) - kept, taken = wanted < left ? wanted : left;
        temper(words + at, drawn + kept, taken);
        at += taken;
        left -= taken;
        kept += taken;
        compare(drawn, mask + done, kept / 2, below);
        done += kept / 2;
        drawn[0] = drawn[kept - 1];  // one that waits for its other half
        kept %= 2;
    }
    after->seed = before->seed;
    after->left = left + 1;
    after->seeded = before->seeded;
    after->next = at;
    for (int i = 0; i < WORDS; ++i) after->words[i] = words[i];
    for (int i = 0; i < OTHERS; ++i) after->others[i] = before->others[i];
}
"""
