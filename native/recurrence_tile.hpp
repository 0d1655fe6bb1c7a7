// Recurrences as templates over an instruction set. Included by the file of each.
//
// Columns of states and channels are lanes of vectors; what is summed over keys is one chain of `fma` for each column. Columns behind the
// last one are zeros in memory of the thread, and are never read from elsewhere, or written there.
#pragma once

#include <cmath>
#include <cstring>

#include "activation.hpp"
#include "recurrence_kernels.hpp"
#include "static_for.hpp"

namespace dragoman {

constexpr int kRecurrenceUnits = 4;  // vectors of a tile
constexpr int kPartialSums = 16;
constexpr float kLengthEpsilon = 1e-6f;

template <class Isa>
constexpr int64_t kTileOf = kRecurrenceUnits * Isa::lanes;

// ln(1 + e^x): what is above 0, and ln(1 + z) of z = e^-|x| as the series of 2 artanh(z / (2 + z)), whose argument is at most 1/3.
template <class Isa>
DRAGOMAN_INLINE typename Isa::Flt softplus(typename Isa::Flt x) {
    using Flt = typename Isa::Flt;
    const Flt z = exponential<Isa>(Isa::mul(Isa::absolute(x), Isa::broadcast(-1.0f)));
    const Flt s = Isa::div(z, Isa::add(z, Isa::broadcast(2.0f))), square = Isa::mul(s, s);
    Flt sum = Isa::broadcast(1.0f / 17);
    for (float factor : {1.0f / 15, 1.0f / 13, 1.0f / 11, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3, 1.0f})
        sum = Isa::fma(sum, square, Isa::broadcast(factor));
    const Flt above = Isa::most(x, Isa::broadcast(0.0f));
    return Isa::add(above, Isa::mul(Isa::add(s, s), sum));
}

// `count` numbers as a whole tile: as they lie if they fill one, else copied to `room`, with zeros behind.
template <class Isa>
DRAGOMAN_INLINE const float* whole_tile(const float* from, int64_t count, float* room) {
    if (count == kTileOf<Isa>) return from;
    for (int64_t i = 0; i < kTileOf<Isa>; ++i) room[i] = i < count ? from[i] : 0.0f;
    return room;
}

// Copies `count` numbers of each of some rows of a matrix to rows of whole tiles, or zeros if there are none.
template <class Isa>
DRAGOMAN_INLINE void load_tile(const float* from, int64_t stride, int64_t count, int64_t rows, float* to) {
    constexpr int64_t tile = kTileOf<Isa>;
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < tile; ++i) to[row * tile + i] = from != nullptr && i < count ? from[row * stride + i] : 0.0f;
    }
}

// An instruction set without stores that go past the caches.
template <class Isa>
struct NotStreaming : Isa {
    static void stream(float* to, typename Isa::Flt values) { Isa::store(to, values); }
    static void end_of_streams() {}
};

// `is_read_soon`: the same thread goes on from there. What is not goes past the caches, where whole lines are written: writing takes more
// time than computing if memory has to be read before.
template <class Isa>
DRAGOMAN_INLINE void store_tile(const float* from, int64_t stride, int64_t count, int64_t rows, float* to, bool is_read_soon) {
    constexpr int64_t tile = kTileOf<Isa>;
    const bool has_lines = reinterpret_cast<uintptr_t>(to) % kLine == 0 && stride * sizeof(float) % kLine == 0 && count == tile;
    for (int64_t row = 0; row < rows; ++row, to += stride, from += tile) {
        if (is_read_soon || !has_lines) {
            std::memcpy(to, from, sizeof(float) * static_cast<size_t>(count));
        } else {
            for (int64_t at = 0; at < tile; at += Isa::lanes) Isa::stream(to + at, Isa::load(from + at));
        }
    }
    Isa::end_of_streams();
}

DRAGOMAN_INLINE int64_t columns_from(int64_t first, int64_t width, int64_t tile) {
    return width - first < tile ? width - first : tile;
}

// Tokens of a row from `token` on, to the end of the block or of the row.
DRAGOMAN_INLINE int64_t tokens_of_block(int64_t past, int64_t token, int64_t count) {
    const int64_t left = kSlots - (past + token) % kSlots;
    return left < count - token ? left : count - token;
}

// --- convolutions -------------------------------------------------------------------------------------------------------

template <class Isa>
void convolve_with(const Convolution& how, const StateTables& tables, const float* x, int64_t first, float* memory, float* kept,
                   float* y) {
    using Flt = typename Isa::Flt;
    constexpr int64_t tile = kTileOf<Isa>;
    const int64_t width = how.width, reach = how.reach(), columns = columns_from(first, width, tile);
    float *taps = memory, *before = taps + how.length * tile, *bias = before + reach * tile, *room = bias + tile;
    load_tile<Isa>(how.taps + first, width, columns, how.length, taps);
    load_tile<Isa>(how.bias == nullptr ? nullptr : how.bias + first, width, columns, 1, bias);
    const auto kept_row = [&](int64_t row, int64_t position) {
        return kept + (tables.block(row, position) * how.slots + position % kSlots % how.slots) * width + first;
    };
    for (int64_t row = 0; row < tables.num_rows; ++row) {
        const int64_t begin = tables.begins[row], count = tables.begins[row + 1] - begin, past = tables.past[row];
        for (int64_t back = 1; back <= reach; ++back) {
            const float* from = past < back ? nullptr : kept_row(row, past - back);
            load_tile<Isa>(from, width, columns, 1, before + (reach - back) * tile);
        }
        for (int64_t token = 0; token < count; ++token) {
            Flt sum[kRecurrenceUnits];
            for (int unit = 0; unit < kRecurrenceUnits; ++unit) sum[unit] = Isa::load(bias + unit * Isa::lanes);
            for (int64_t tap = 0; tap < how.length; ++tap) {
                const int64_t source = token - reach + tap;
                const float* from = source < 0 ? before + (source + reach) * tile
                                               : whole_tile<Isa>(x + (begin + source) * width + first, columns, room);
                for (int unit = 0; unit < kRecurrenceUnits; ++unit)
                    sum[unit] = Isa::fma(Isa::load(from + unit * Isa::lanes), Isa::load(taps + tap * tile + unit * Isa::lanes),
                                         sum[unit]);
            }
            for (int unit = 0; unit < kRecurrenceUnits; ++unit) {
                if (how.has_silu) sum[unit] = activated<Isa>(Activation::silu, sum[unit]);
                Isa::store(room + unit * Isa::lanes, sum[unit]);
            }
            std::memcpy(y + (begin + token) * width + first, room, sizeof(float) * static_cast<size_t>(columns));
        }
        for (int64_t token = 0; token < count; ++token) {
            const int64_t slot = (past + token) % kSlots;
            if (token + how.slots < count && slot + how.slots < kSlots) continue;  // a later one takes its place
            std::memcpy(kept_row(row, past + token), x + (begin + token) * width + first,
                        sizeof(float) * static_cast<size_t>(columns));
        }
    }
}

// --- heads --------------------------------------------------------------------------------------------------------------

template <class Isa>
class HeadRunner {
    using Flt = typename Isa::Flt;
    static constexpr int64_t kTile = kTileOf<Isa>;
    static constexpr int kLanes = Isa::lanes, kUnits = kRecurrenceUnits;
    static constexpr int kTogether = Isa::registers >= 32 ? kUnits : kUnits / 2;  // vectors whose sums are in registers

public:
    HeadRunner(const HeadStates& how, const StateTables& tables, const HeadRows& rows, int64_t head, float* memory, float* states,
               float* y)
        : how_(how),
          tables_(tables),
          rows_(rows),
          head_(head),
          key_head_(head / (how.heads / how.key_heads)),
          tiles_((how.value + kTile - 1) / kTile),
          state_(memory),
          keys_(state_ + tiles_ * kTile * how.key),
          queries_(keys_ + kSlots * how.key),
          steps_(queries_ + kSlots * how.key),
          left_(steps_ + kSlots),
          parts_(left_ + kSlots),
          products_(parts_ + kSlots),
          room_(products_ + kSlots),
          states_(states),
          y_(y) {}

    void run() const {
        for (int64_t row = 0; row < tables_.num_rows; ++row) {
            const int64_t begin = tables_.begins[row], count = tables_.begins[row + 1] - begin, past = tables_.past[row];
            const float* from = past == 0 ? nullptr : state_of(row, past - 1);
            for (int64_t tile = 0; tile < tiles_; ++tile)
                load_tile<Isa>(from == nullptr ? nullptr : from + tile * kTile, how_.value, columns_of(tile), how_.key,
                               tile_of(tile));
            for (int64_t token = 0; token < count;) {
                const int64_t here = tokens_of_block(past, token, count);
                prepare(begin + token, here);
                for (int64_t tile = 0; tile < tiles_; ++tile) {
                    if (how_.corrects) {
                        correct(tile, begin + token, here);
                    } else {
                        scan(tile, begin + token, here);
                    }
                }
                token += here;
                float* to = state_of(row, past + token - 1);
                for (int64_t tile = 0; tile < tiles_; ++tile)
                    store_tile<Isa>(tile_of(tile), how_.value, columns_of(tile), how_.key, to + tile * kTile, token == count);
            }
        }
    }

private:
    float* tile_of(int64_t tile) const { return state_ + tile * kTile * how_.key; }
    int64_t columns_of(int64_t tile) const { return columns_from(tile * kTile, how_.value, kTile); }
    float* state_of(int64_t row, int64_t position) const {
        return states_ + (tables_.block(row, position) * how_.heads + head_) * how_.key * how_.value;
    }
    // Where a token's queries, keys and values of this head lie.
    const float* query(int64_t token) const {
        return rows_.mixed + token * how_.width() + (how_.corrects ? 0 : how_.value_width() + how_.key_width()) +
               key_head_ * how_.key;
    }
    const float* key(int64_t token) const {
        return rows_.mixed + token * how_.width() + (how_.corrects ? how_.key_width() : how_.value_width()) +
               key_head_ * how_.key;
    }
    const float* value(int64_t token) const {
        return rows_.mixed + token * how_.width() + (how_.corrects ? 2 * how_.key_width() : 0) + head_ * how_.value;
    }

    void prepare(int64_t first, int64_t count) const {
        for (int64_t i = 0; i < kSlots; ++i) {
            steps_[i] = i < count ? rows_.steps[(first + i) * how_.heads + head_] + how_.biases[head_] : 0.0f;
            parts_[i] = i < count && how_.corrects ? rows_.parts[(first + i) * how_.heads + head_] : 0.0f;
        }
        const Flt rate = Isa::broadcast(how_.rates[head_]), lowest = Isa::broadcast(how_.lowest),
                  highest = Isa::broadcast(how_.highest);
        for (int64_t i = 0; i < kSlots; i += kLanes) {
            const Flt step = Isa::least(highest, Isa::most(lowest, softplus<Isa>(Isa::load(steps_ + i))));
            Isa::store(steps_ + i, step);
            Isa::store(left_ + i, exponential<Isa>(Isa::mul(step, rate)));
            Isa::store(parts_ + i, sigmoid<Isa>(Isa::load(parts_ + i)));
        }
        const float scale = how_.corrects ? 1.0f / std::sqrt(static_cast<float>(how_.key)) : 1.0f;
        for (int64_t i = 0; i < count; ++i) {
            copy_normed(query(first + i), scale, queries_ + i * how_.key);
            copy_normed(key(first + i), 1.0f, keys_ + i * how_.key);
            if (how_.corrects) products_[i] = dot(keys_ + i * how_.key, queries_ + i * how_.key);
        }
    }

    float dot(const float* a, const float* b) const {
        float sums[kPartialSums] = {};
        int64_t i = 0;
        for (; i + kPartialSums <= how_.key; i += kPartialSums)
            for (int j = 0; j < kPartialSums; ++j) sums[j] = std::fma(a[i + j], b[i + j], sums[j]);
        for (int j = 0; i + j < how_.key; ++j) sums[j] = std::fma(a[i + j], b[i + j], sums[j]);
        for (int half = kPartialSums / 2; half > 0; half /= 2)
            for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
        return sums[0];
    }

    void copy_normed(const float* from, float scale, float* to) const {
        const float factor = how_.corrects ? scale / std::sqrt(dot(from, from) + kLengthEpsilon) : 1.0f;
        for (int64_t i = 0; i < how_.key; ++i) to[i] = from[i] * factor;
    }

    void scan(int64_t tile, int64_t first, int64_t count) const {
        const int64_t columns = columns_of(tile);
        float *state = tile_of(tile), *results = room_ + kTile;
        const Flt skip = Isa::broadcast(how_.skips == nullptr ? 0.0f : how_.skips[head_]);
        for (int64_t token = 0; token < count; ++token) {
            const float *keys = keys_ + token * how_.key, *queries = queries_ + token * how_.key;
            const float* values = whole_tile<Isa>(value(first + token) + tile * kTile, columns, room_);
            const Flt left = Isa::broadcast(left_[token]), step = Isa::broadcast(steps_[token]);
            Flt added[kUnits], sum[kUnits];
            for (int unit = 0; unit < kUnits; ++unit) {
                added[unit] = Isa::mul(Isa::load(values + unit * kLanes), step);
                sum[unit] = Isa::zero();
            }
            for (int64_t k = 0; k < how_.key; ++k) {
                const Flt key = Isa::broadcast(keys[k]), query = Isa::broadcast(queries[k]);
                for (int unit = 0; unit < kUnits; ++unit) {
                    float* at = state + k * kTile + unit * kLanes;
                    const Flt kept = Isa::fma(key, added[unit], Isa::mul(Isa::load(at), left));
                    Isa::store(at, kept);
                    sum[unit] = Isa::fma(kept, query, sum[unit]);
                }
            }
            for (int unit = 0; unit < kUnits; ++unit) {
                if (how_.skips != nullptr) sum[unit] = Isa::fma(skip, Isa::load(values + unit * kLanes), sum[unit]);
                Isa::store(results + unit * kLanes, sum[unit]);
            }
            give(results, first + token, tile);
        }
    }

    // One pass over the state for each token: it gets what the token before adds, and is read by this one's key and query. With the
    // product of these two, what the query reads behind the token's own change follows from what it reads before.
    void correct(int64_t tile, int64_t first, int64_t count) const {
        const int64_t columns = columns_of(tile);
        float *state = tile_of(tile), *results = room_ + kTile;
        Flt known[kUnits], read[kUnits], added[kUnits];
        pass<false, true>(state, 0, known, read, added);
        for (int64_t token = 0; token < count; ++token) {
            const float* values = whole_tile<Isa>(value(first + token) + tile * kTile, columns, room_);
            const Flt left = Isa::broadcast(left_[token]), part = Isa::broadcast(parts_[token]), minus = Isa::broadcast(-1.0f),
                      product = Isa::broadcast(products_[token]);
            for (int unit = 0; unit < kUnits; ++unit) {
                const Flt before = Isa::mul(known[unit], left);
                added[unit] = Isa::mul(Isa::fma(before, minus, Isa::load(values + unit * kLanes)), part);
                Isa::store(results + unit * kLanes, Isa::fma(added[unit], product, Isa::mul(read[unit], left)));
            }
            give(results, first + token, tile);
            if (token + 1 < count) {
                pass<true, true>(state, token + 1, known, read, added);
            } else {
                pass<true, false>(state, token + 1, known, read, added);
            }
        }
    }

    // What the token before adds, then what this token's key and query read of the state.
    template <bool Adds, bool Reads>
    DRAGOMAN_INLINE void pass(float* state, int64_t token, Flt* known, Flt* read, const Flt* added) const {
        const float *keys = keys_ + token * how_.key, *queries = queries_ + token * how_.key;
        const float* before = Adds ? keys_ + (token - 1) * how_.key : nullptr;
        const Flt left = Adds ? Isa::broadcast(left_[token - 1]) : Isa::zero();
        static_for<0, kUnits / kTogether>([&](auto group) {
            constexpr int first = group * kTogether;
            Flt sums[2 * kTogether], adds[kTogether];
            static_for<0, kTogether>([&](auto unit) {
                sums[unit] = sums[kTogether + unit] = Isa::zero();
                adds[unit] = Adds ? added[first + unit] : left;
            });
            for (int64_t k = 0; k < how_.key; ++k) {
                const Flt key = Isa::broadcast(keys[k]), query = Isa::broadcast(queries[k]);
                const Flt key_before = Adds ? Isa::broadcast(before[k]) : left;
                static_for<0, kTogether>([&](auto unit) {
                    float* at = state + k * kTile + (first + unit) * kLanes;
                    Flt kept = Isa::load(at);
                    if constexpr (Adds) {
                        kept = Isa::fma(key_before, adds[unit], Isa::mul(kept, left));
                        Isa::store(at, kept);
                    }
                    if constexpr (Reads) {
                        sums[unit] = Isa::fma(kept, key, sums[unit]);
                        sums[kTogether + unit] = Isa::fma(kept, query, sums[kTogether + unit]);
                    }
                });
            }
            static_for<0, kTogether>([&](auto unit) {
                known[first + unit] = sums[unit];
                read[first + unit] = sums[kTogether + unit];
            });
        });
    }

    void give(const float* results, int64_t token, int64_t tile) const {
        std::memcpy(y_ + (token * how_.heads + head_) * how_.value + tile * kTile, results,
                    sizeof(float) * static_cast<size_t>(columns_of(tile)));
    }

    const HeadStates& how_;
    const StateTables& tables_;
    const HeadRows& rows_;
    const int64_t head_, key_head_, tiles_;
    float *const state_, *const keys_, *const queries_, *const steps_, *const left_, *const parts_, *const products_,
                                                                                                        *const room_;
    float *const states_, *const y_;
};

template <class Isa>
void heads_with(const HeadStates& how, const StateTables& tables, const HeadRows& rows, int64_t head, float* memory,
                float* states, float* y) {
    HeadRunner<Isa>(how, tables, rows, head, memory, states, y).run();
}

// --- channels -----------------------------------------------------------------------------------------------------------

// Runs `body(token, sequence begins)` over all tokens of a step, with the state [numbers][tile] of these columns in `state`.
template <class Isa, class Body>
DRAGOMAN_INLINE void over_tokens(const StateTables& tables, int64_t numbers, int64_t width, int64_t first, float* state,
                                 float* states, const Body& body) {
    const int64_t columns = columns_from(first, width, kTileOf<Isa>);
    const auto state_of = [&](int64_t row, int64_t position) {
        return states + tables.block(row, position) * numbers * width + first;
    };
    for (int64_t row = 0; row < tables.num_rows; ++row) {
        const int64_t begin = tables.begins[row], count = tables.begins[row + 1] - begin, past = tables.past[row];
        load_tile<Isa>(past == 0 ? nullptr : state_of(row, past - 1), width, columns, numbers, state);
        for (int64_t token = 0; token < count;) {
            const int64_t here = tokens_of_block(past, token, count);
            for (int64_t i = 0; i < here; ++i) body(begin + token + i, past + token + i == 0);
            token += here;
            store_tile<Isa>(state, width, columns, numbers, state_of(row, past + token - 1), token == count);
        }
    }
}

template <class Isa>
void channels_with(const ChannelStates& how, const StateTables& tables, const ChannelRows& rows, int64_t first, float* memory,
                   float* states, float* y) {
    using Flt = typename Isa::Flt;
    constexpr int64_t tile = kTileOf<Isa>;
    const int64_t width = how.width, columns = columns_from(first, width, tile);
    float *state = memory, *rates = state + how.numbers * tile, *biases = rates + how.numbers * tile, *skips = biases + tile;
    float *x_room = skips + tile, *steps_room = x_room + tile, *results = steps_room + tile;
    load_tile<Isa>(how.rates + first, width, columns, how.numbers, rates);
    load_tile<Isa>(how.biases + first, width, columns, 1, biases);
    load_tile<Isa>(how.skips + first, width, columns, 1, skips);
    over_tokens<Isa>(tables, how.numbers, width, first, state, states, [&](int64_t token, bool) {
        const float* x = whole_tile<Isa>(rows.x + token * width + first, columns, x_room);
        const float* raw = whole_tile<Isa>(rows.steps + token * width + first, columns, steps_room);
        const float *keys = rows.keys + token * how.numbers, *queries = rows.queries + token * how.numbers;
        Flt steps[kRecurrenceUnits], added[kRecurrenceUnits], sum[kRecurrenceUnits];
        for (int unit = 0; unit < kRecurrenceUnits; ++unit) {
            const int at = unit * Isa::lanes;
            steps[unit] = softplus<Isa>(Isa::add(Isa::load(raw + at), Isa::load(biases + at)));
            added[unit] = Isa::mul(steps[unit], Isa::load(x + at));
            sum[unit] = Isa::zero();
        }
        for (int64_t number = 0; number < how.numbers; ++number) {
            const Flt key = Isa::broadcast(keys[number]), query = Isa::broadcast(queries[number]);
            for (int unit = 0; unit < kRecurrenceUnits; ++unit) {
                const int64_t at = number * tile + unit * Isa::lanes;
                const Flt left = exponential<Isa>(Isa::mul(steps[unit], Isa::load(rates + at)));
                const Flt kept = Isa::fma(key, added[unit], Isa::mul(Isa::load(state + at), left));
                Isa::store(state + at, kept);
                sum[unit] = Isa::fma(kept, query, sum[unit]);
            }
        }
        for (int unit = 0; unit < kRecurrenceUnits; ++unit) {
            const int at = unit * Isa::lanes;
            Isa::store(results + at, Isa::fma(Isa::load(skips + at), Isa::load(x + at), sum[unit]));
        }
        std::memcpy(y + token * width + first, results, sizeof(float) * static_cast<size_t>(columns));
    });
}

template <class Isa>
void gates_with(const GatedStates& how, const StateTables& tables, const GatedRows& rows, int64_t first, float* memory,
                float* states, float* y) {
    using Flt = typename Isa::Flt;
    constexpr int64_t tile = kTileOf<Isa>;
    const int64_t width = how.width, columns = columns_from(first, width, tile);
    float *state = memory, *rates = state + tile, *x_room = rates + tile, *input_room = x_room + tile,
          *gate_room = input_room + tile;
    float* parts = gate_room + tile;
    load_tile<Isa>(how.rates + first, width, columns, 1, rates);
    over_tokens<Isa>(tables, 1, width, first, state, states, [&](int64_t token, bool begins) {
        const float* x = whole_tile<Isa>(rows.x + token * width + first, columns, x_room);
        const float* input_gates = whole_tile<Isa>(rows.input_gates + token * width + first, columns, input_room);
        const float* gates = whole_tile<Isa>(rows.gates + token * width + first, columns, gate_room);
        const Flt minus = Isa::broadcast(-1.0f), one = Isa::broadcast(1.0f);
        for (int unit = 0; unit < kRecurrenceUnits; ++unit) {
            const int at = unit * Isa::lanes;
            const Flt power = Isa::mul(Isa::load(rates + at), sigmoid<Isa>(Isa::load(gates + at)));
            Isa::store(parts + at, Isa::fma(exponential<Isa>(Isa::add(power, power)), minus, one));
        }
        for (int64_t i = 0; i < tile; ++i) parts[i] = begins ? 1.0f : std::sqrt(parts[i] > 0 ? parts[i] : 0.0f);
        for (int unit = 0; unit < kRecurrenceUnits; ++unit) {
            const int at = unit * Isa::lanes;
            const Flt left = exponential<Isa>(Isa::mul(Isa::load(rates + at), sigmoid<Isa>(Isa::load(gates + at))));
            const Flt added =
                Isa::mul(Isa::mul(sigmoid<Isa>(Isa::load(input_gates + at)), Isa::load(x + at)), Isa::load(parts + at));
            Isa::store(state + at, Isa::fma(Isa::load(state + at), left, added));
        }
        std::memcpy(y + token * width + first, state, sizeof(float) * static_cast<size_t>(columns));
    });
}

template <class Isa>
constexpr RecurrenceKernels recurrence_of() {
    return {kTileOf<Isa>, convolve_with<Isa>, heads_with<Isa>, channels_with<Isa>, gates_with<Isa>};
}

}  // namespace dragoman
