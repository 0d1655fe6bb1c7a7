// The kernels as templates over an instruction set, which says what a vector is and how four products are added up.
//
// Up to `Isa::most_few` rows are multiplied with the codes as they lie in memory. For more rows the codes and scales of some panels and
// chunks are unpacked once, into memory that stays in the first cache, unless that costs more than it saves. Both add up in the
// same order: for each chunk (or half of one) `sum = fma(float(products), matrix scale * row scale, sum)`, then `fma(minimum, shift, sum)`. In
// groups of several chunks these sum `fma(float(products), row scale, group)`, and scale and minimum come once, at a group's end. What a
// chunk's codes leave out is added as one more chunk behind the block that it lies in.
#pragma once

#include <cmath>
#include <cstring>

#include "activation.hpp"
#include "float_tile.hpp"
#include "kernels.hpp"
#include "panel.hpp"
#include "quantise.hpp"
#include "rows.hpp"
#include "static_for.hpp"

namespace dragoman {

constexpr int kBlockRows = 192;  // that use them

template <class Isa, Format F>
constexpr bool is_signed() {
    return !Isa::flips && (shape_of(F).codes == Codes::signed8 || shape_of(F).codes == Codes::iq4_nl);
}

// True if codes are unpacked for many rows. Where dot products are quick, codes of up to `Isa::direct_bits` in one plane cost less as
// they lie.
template <class Isa, Format F>
constexpr bool is_unpacked() {
    const Shape& shape = shape_of(F);
    return shape.columns == kSuper || (shape.bits != 4 && shape.bits != 8) || shape.bits > Isa::direct_bits;
}

template <class Isa>
constexpr int offset_of(Format format) {
    switch (shape_of(format).codes) {
        case Codes::signed8:
        case Codes::iq4_nl: return Isa::flips ? 128 : 0;
        case Codes::mxfp4: return 12;
        default: return shape_of(format).offset;
    }
}

// Quads whose products fit 16 bits where pairs of products are added up there: max code * 127 * 2 * quads < 32768.
template <Format F>
constexpr int quads_in_16_bits() {
    constexpr Shape shape = shape_of(F);
    constexpr int highest = shape.codes == Codes::mxfp4 ? 24 : (1 << (int)least(shape.bits, 7)) - 1;
    return (int)least(32767 / (highest * 254), kQuads);
}

// --- codes and scales of a panel ----------------------------------------------------------------------------------------

// The codes of four columns of the unit's outputs; `chunk`: the chunk's bytes, from the unit's first output on.
// Signed ones are made unsigned where instructions need that (`Isa::flips`).
template <class Isa, Format F, int Quad>
inline typename Isa::Int quad_of(const uint8_t* chunk) {
    constexpr Shape shape = shape_of(F);
    using Int = typename Isa::Int;
    if constexpr (shape.bits == 8) {
        Int codes = Isa::load(chunk + kLine * Quad);
        if constexpr (Isa::flips) codes = Isa::flip(codes);
        return codes;
    } else if constexpr (shape.bits >= 4) {
        Int both = Isa::load(chunk + kLine * (Quad / 2));
        Int low = Isa::bits(Quad % 2 ? Isa::template right<4>(both) : both, 0x0F);
        if constexpr (shape.codes == Codes::iq4_nl) return Isa::look_up(kIq4Nl, Isa::flips ? 128 : 0, low);
        if constexpr (shape.codes == Codes::mxfp4) return Isa::look_up(kMxfp4, 12, low);
        if constexpr (shape.bits == 5) {
            Int plane = Isa::load(chunk + kLine * 4);
            if constexpr (Quad < 4) return Isa::either(low, Isa::bits(Isa::template left<4 - Quad % 4>(plane), 0x10));
            if constexpr (Quad >= 4) return Isa::either(low, Isa::bits(Isa::template right<Quad % 4>(plane), 0x10));
        }
        if constexpr (shape.bits == 6) {
            Int plane = Isa::load(chunk + kLine * (4 + Quad / 4));
            if constexpr (Quad % 4 < 3) return Isa::either(low, Isa::bits(Isa::template left<4 - 2 * (Quad % 4)>(plane), 0x30));
            if constexpr (Quad % 4 == 3) return Isa::either(low, Isa::bits(Isa::template right<2>(plane), 0x30));
        }
        return low;
    } else {
        Int low = Isa::bits(Isa::template right<2 * (Quad % 4)>(Isa::load(chunk + kLine * (Quad / 4))), 3);
        if constexpr (shape.bits == 3) {
            Int plane = Isa::load(chunk + kLine * 2);
            if constexpr (Quad < 2) return Isa::either(low, Isa::bits(Isa::template left<(2 - Quad) & 3>(plane), 4));
            if constexpr (Quad >= 2) return Isa::either(low, Isa::bits(Isa::template right<(Quad - 2) & 7>(plane), 4));
        }
        return low;
    }
}

// Scales and minima of a unit's outputs, block by block and chunk by chunk.
template <class Isa, Format F>
class Scales {
    using Int = typename Isa::Int;
    using Flt = typename Isa::Flt;
    static constexpr Shape kShape = shape_of(F);
    static constexpr bool kIsSuper = kShape.columns == kSuper;
    static constexpr bool kHasWords = has_words(F);

public:
    // `lane`: the unit's first output in the panel.
    Scales(const uint8_t* panel, int64_t chunks_of_block, int lane) : at_(panel), chunks_(chunks_of_block), lane_(lane) {}

    void seek(int64_t chunk) {
        const int64_t place = chunk % chunks_;
        block_ = at_ + chunk / chunks_ * kShape.block_bytes;
        left_ = chunks_ - place;
        chunk_ = block_ + inner_place(kShape) + (kHasWords ? (place - place / kWordChunks) * kWordBytes : place * kByteScales);
        read_block();
        if constexpr (kHasWords) read_words();
    }

    void next() {
        if (--left_ == 0) {
            block_ += kShape.block_bytes;
            chunk_ = block_ + inner_place(kShape);
            left_ = chunks_;
            read_block();
        } else if constexpr (kIsSuper && !kHasWords) {
            chunk_ += kByteScales;
        }
        if constexpr (kHasWords) read_words();
    }

    Flt scale(int half) const {
        if constexpr (!kIsSuper) return scale_;
        if constexpr (F == Format::q2_k) return Isa::mul(scale_, Isa::from_half_bytes(chunk_ + 16 * half + lane_, false));
        if constexpr (F == Format::q6_k) return Isa::mul(scale_, Isa::from_signed_bytes(chunk_ + 16 * half + lane_));
        if constexpr (F == Format::q3_k) {
            const Flt code = Isa::to_floats(Isa::bits32(words_, half ? kHigh : kLow));
            return Isa::fma(half ? upper_ : scale_, code, offset_);
        }
        return Isa::mul(scale_, Isa::to_floats(Isa::bits32(words_, kLow)));
    }

    Flt minimum(int half) const {
        if constexpr (!kIsSuper) return minimum_;
        if constexpr (F == Format::q2_k) return Isa::mul(minimum_, Isa::from_half_bytes(chunk_ + 16 * half + lane_, true));
        return Isa::mul(upper_, Isa::to_floats(Isa::bits32(words_, kHigh)));
    }

private:
    // A word's lower six bits, and its upper ones where they are: they count 64 times, which `upper_` takes away exactly.
    static constexpr int kUpper = 1 << kInnerBits, kLow = kUpper - 1, kHigh = kLow * kUpper;

    // The words of the chunk, and the place of the next one's. The fourth chunk's are the upper bits of the three before.
    void read_words() {
        if (left_ % kWordChunks == 1) {
            const uint8_t* first = chunk_ + 2 * lane_ - 3 * kWordBytes;
            const Int low = Isa::template right32<12>(Isa::words(first));
            const Int middle = Isa::template left32<4>(Isa::template right32<12>(Isa::words(first + kWordBytes)));
            const Int high = Isa::template left32<8>(Isa::template right32<12>(Isa::words(first + 2 * kWordBytes)));
            words_ = Isa::either(low, Isa::either(middle, high));
        } else {
            words_ = Isa::words(chunk_ + 2 * lane_);
            chunk_ += kWordBytes;
        }
    }

    void read_block() {
        if constexpr (F == Format::mxfp4) {
            scale_ = Isa::half_power(block_ + lane_);
        } else {
            scale_ = Isa::from_halves(block_ + 2 * lane_);
        }
        if constexpr (F == Format::q2_k) minimum_ = Isa::from_halves(block_ + 32 + 2 * lane_);
        if constexpr (kHasWords) {
            const Flt upper = kShape.has_minimum ? Isa::from_halves(block_ + 32 + 2 * lane_) : scale_;
            upper_ = Isa::mul(upper, Isa::broadcast(1.0f / kUpper));
            if constexpr (F == Format::q3_k) offset_ = Isa::mul(scale_, Isa::broadcast(-kInnerOffset));
        }
        if constexpr (F == Format::i4m || F == Format::i5m) minimum_ = Isa::from_halves(block_ + 32 + 2 * lane_);
        if constexpr (F == Format::i4z) minimum_ = Isa::mul(scale_, Isa::from_bytes(block_ + 32 + lane_));
        if constexpr (F == Format::i8z) minimum_ = Isa::mul(scale_, Isa::from_signed_bytes(block_ + 32 + lane_));
    }

    const uint8_t* at_;
    const uint8_t* block_ = nullptr;
    const uint8_t* chunk_ = nullptr;
    int64_t chunks_, left_ = 0;
    int lane_;
    Flt scale_{}, minimum_{}, upper_{}, offset_{};
    Int words_{};
};

// --- products of a chunk ------------------------------------------------------------------------------------------------

// Adds the products of quads [First, Last) of R rows and N units up in pairs of 16 bits, as long as these fit, and from there to `sums`,
// which begin with them.
template <class Isa, int Fits, int R, int N, int First, int Last, bool Begins, class CodesOf>
inline void add_in_pairs(const int8_t* const (&rows)[R], typename Isa::Int (&sums)[R][N], CodesOf codes) {
    using Int = typename Isa::Int;
    constexpr int kEnd = (int)least(First + Fits, Last);
    Int narrow[R][N];
    static_for<First, kEnd>([&](auto quad) {
        Int unit[N];
        static_for<0, N>([&](auto n) { unit[n] = codes(n, quad); });
        static_for<0, R>([&](auto r) {
            const auto x = Isa::template four<quad>(rows[r]);
            static_for<0, N>([&](auto n) {
                Int pairs = Isa::pairs(unit[n], x);
                narrow[r][n] = quad == First ? pairs : Isa::add16(narrow[r][n], pairs);
            });
        });
    });
    static_for<0, R>([&](auto r) {
        static_for<0, N>([&](auto n) {
            const Int wide = Isa::of_pairs(narrow[r][n]);
            sums[r][n] = Begins ? wide : Isa::add(sums[r][n], wide);
        });
    });
    if constexpr (kEnd < Last) add_in_pairs<Isa, Fits, R, N, kEnd, Last, false>(rows, sums, codes);
}

// The products of quads [First, Last) of R rows and N units, and `start(r)` of a row. `codes(n, quad)` gives a unit's codes. Pairs
// get the start at last, which until then needs no register.
template <class Isa, bool Signed, int Fits, int R, int N, int First, int Last, class CodesOf, class StartOf>
inline void sum_products(const int8_t* const (&rows)[R], typename Isa::Int (&sums)[R][N], CodesOf codes, StartOf start) {
    using Int = typename Isa::Int;
    if constexpr (Isa::has_dot || Signed) {
        static_for<0, R>([&](auto r) {
            const Int first = start(r);
            static_for<0, N>([&](auto n) { sums[r][n] = first; });
        });
        static_for<First, Last>([&](auto quad) {
            Int unit[N];
            static_for<0, N>([&](auto n) { unit[n] = codes(n, quad); });
            static_for<0, R>([&](auto r) {
                const auto x = Isa::template four<quad>(rows[r]);
                static_for<0, N>([&](auto n) { sums[r][n] = Isa::template add_dot<Signed>(sums[r][n], unit[n], x); });
            });
        });
    } else {
        add_in_pairs<Isa, Fits, R, N, First, Last, true>(rows, sums, codes);
        static_for<0, R>([&](auto r) {
            const Int first = start(r);
            static_for<0, N>([&](auto n) { sums[r][n] = Isa::add(sums[r][n], first); });
        });
    }
}

// The same where one instruction multiplies two rows by two outputs, eight columns of each. `codes(n, quad)` gives those of the unit's
// first outputs in quad and the next one, and for an odd quad of its last outputs in that and the one before. A row that is left
// over is its own neighbour.
template <class Isa, int R, int N, int First, int Last, class CodesOf>
inline void add_by_two_rows(const int8_t* const (&rows)[R], typename Isa::Int (&sums)[R][N], CodesOf codes) {
    using Int = typename Isa::Int;
    static_for<0, (R + 1) / 2>([&](auto pair) {
        constexpr int r = 2 * pair, next = (int)least(r + 1, R - 1);
        Int first[N], last[N];
        static_for<0, N>([&](auto n) { first[n] = last[n] = Isa::nothing(); });
        static_for<First / 2, Last / 2>([&](auto two) {
            const Int x = Isa::two_rows(rows[r] + 8 * two, rows[next] + 8 * two);
            static_for<0, N>([&](auto n) {
                first[n] = Isa::add_two_rows(first[n], x, codes(n, std::integral_constant<int, 2 * two>{}));
                last[n] = Isa::add_two_rows(last[n], x, codes(n, std::integral_constant<int, 2 * two + 1>{}));
            });
        });
        static_for<0, N>([&](auto n) {
            sums[r][n] = Isa::add_sums(sums[r][n], Isa::of_first_row(first[n], last[n]));
            if constexpr (next != r) sums[next][n] = Isa::add_sums(sums[next][n], Isa::of_second_row(first[n], last[n]));
        });
    });
}

// An integer in memory times a factor, in each lane. Of powers of two without the detour of a product by a scalar register.
template <class Isa, int Factor>
DRAGOMAN_INLINE typename Isa::Int times(const int32_t* value) {
    if constexpr (Factor == 0) return Isa::nothing();
    if constexpr (Factor > 0 && (Factor & (Factor - 1)) == 0)
        return Isa::template left32<__builtin_ctz(Factor)>(Isa::broadcast(*value));
    return Isa::broadcast(Factor * *value);
}

// By how much a minimum counts in a group of the chunks [begin, end).
DRAGOMAN_INLINE float shift_of_group(const Rows& rows, int64_t row, int64_t begin, int64_t end) {
    const float* shifts = rows.shifts + row * rows.chunks * kShifts;
    if (begin % kFour == 0 && end - begin <= kFour) return shifts[end * kShifts - 1];
    if (begin == 0 && end == rows.chunks) return rows.totals[row];
    float sum = 0;
    for (int64_t c = begin; c < end; ++c) sum += shifts[c * kShifts + 2];
    return sum;
}

// --- codes as they lie --------------------------------------------------------------------------------------------------

// What half a chunk of N units (or all of it) has with chunk `c` of R rows. `codes`, `chunk`: those of the chunk.
template <class Isa, Format F, int R, int N, int Half>
DRAGOMAN_INLINE void multiply(const Rows& rows, int64_t c, const int8_t* const (&codes)[R], const uint8_t* const (&chunk)[N],
                              typename Isa::Int (&products)[R][N]) {
    constexpr Shape shape = shape_of(F);
    constexpr int quads = kQuads * shape.sub / kChunk;
    sum_products<Isa, is_signed<Isa, F>(), quads_in_16_bits<F>(), R, N, Half * quads, (Half + 1) * quads>(
        codes, products, [&](auto n, auto quad) { return quad_of<Isa, F, quad>(chunk[n]); },
        [&](auto r) {
            return times<Isa, offset_of<Isa>(F)>(rows.sums + (r * rows.chunks + c) * kSums + sum_index(shape.sub, Half));
        });
}

// Adds the products of a chunk, for which `scales` has each unit's.
template <class Isa, Format F, int R, int N, class ScalesOfUnits>
DRAGOMAN_INLINE void add_chunk(const Rows& rows, int64_t c, const int8_t* const (&codes)[R], const uint8_t* const (&chunk)[N],
                               const ScalesOfUnits& scales, typename Isa::Flt (&sums)[R][N]) {
    using Flt = typename Isa::Flt;
    constexpr Shape shape = shape_of(F);
    static_for<0, kChunk / shape.sub>([&](auto half) {
        typename Isa::Int products[R][N];
        multiply<Isa, F, R, N, half>(rows, c, codes, chunk, products);
        Flt scale[N], minimum[N];
        static_for<0, N>([&](auto n) { scale[n] = scales[n].scale(half); });
        if constexpr (shape.has_minimum) static_for<0, N>([&](auto n) { minimum[n] = scales[n].minimum(half); });
        static_for<0, R>([&](auto r) {
            Flt x = Isa::broadcast(rows.scales[r * rows.chunks + c]);
            static_for<0, N>(
                [&](auto n) { sums[r][n] = Isa::fma(Isa::to_floats(products[r][n]), Isa::mul(scale[n], x), sums[r][n]); });
            if constexpr (shape.has_minimum) {
                Flt shift = Isa::broadcast(rows.shifts[(r * rows.chunks + c) * kShifts + sum_index(shape.sub, half)]);
                static_for<0, N>([&](auto n) { sums[r][n] = Isa::fma(minimum[n], shift, sums[r][n]); });
            }
        });
    });
}

// A bit for each block of chunks in which codes of a row leave something out that is known; of more than 64 blocks some share a bit.
DRAGOMAN_INLINE uint64_t refined_blocks(const Rows& rows, int64_t row) {
    uint64_t blocks = 0;
    const int64_t count = finer_of(rows.chunks);
    for (const Finer* finer = rows.finer + row * count; finer < rows.finer + (row + 1) * count && finer->chunk >= 0; ++finer)
        blocks |= uint64_t{1} << (finer->chunk / kBlockChunks % 64);
    return blocks;
}

DRAGOMAN_INLINE bool has_block(uint64_t blocks, int64_t block) { return blocks >> (block % 64) & 1; }

// Calls `body` with what codes of the chunks [begin, end) of a row leave out.
template <class Body>
DRAGOMAN_INLINE void for_finer(const Rows& rows, int64_t row, int64_t begin, int64_t end, const Body& body) {
    const int64_t count = finer_of(rows.chunks);
    for (Finer* finer = rows.finer + row * count; finer < rows.finer + (row + 1) * count && finer->chunk >= 0; ++finer)
        if (finer->chunk >= begin && finer->chunk < end) body(*finer);
}

// Adds what a chunk's codes leave out. Not inlined, and called rarely: sums of others stay in registers.
template <class Isa, Format F, int N>
[[gnu::flatten, gnu::noinline]] void add_finer(const Matrix& matrix, Finer& finer, const uint8_t* const (&panels)[N],
                                               const int (&lanes)[N], typename Isa::Flt (&sums)[1][N]) {
    constexpr int bytes = kPanel * kChunk * shape_of(F).bits / 8;
    const Rows row = finer.row();
    const int8_t* const codes[1] = {row.codes};
    const uint8_t* chunk[N];
    auto scales = make_array<N>([&](auto n) { return Scales<Isa, F>(panels[n], matrix.chunks_of_block(), lanes[n]); });
    static_for<0, N>([&](auto n) {
        chunk[n] = panels[n] + matrix.parameter_bytes() + finer.chunk * bytes + 4 * lanes[n];
        scales[n].seek(finer.chunk);
    });
    add_chunk<Isa, F, 1, N>(row, 0, codes, chunk, scales, sums);
}

// R rows by N units of one matrix, to `y` [R][N][lanes]. `panels[n]`, `lanes[n]`: a unit's panel and first output there. `asks`: the panels
// come from memory, which is asked for ahead.
template <class Isa, Format F, bool Wide, int R, int N>
inline void direct_rows(const Matrix& matrix, const Rows& rows, const uint8_t* const (&panels)[N], const int (&lanes)[N],
                        float* y, bool asks) {
    using Int = typename Isa::Int;
    using Flt = typename Isa::Flt;
    constexpr Shape shape = shape_of(F);
    constexpr int bytes = kPanel * kChunk * shape.bits / 8;
    const int64_t chunks = rows.chunks, first = matrix.parameter_bytes(), per_block = matrix.chunks_of_block();
    uint64_t refined = 0;
    for (int row = 0; row < R; ++row) refined |= refined_blocks(rows, row);
    const int8_t* codes[R];
    const uint8_t* chunk[N];
    static_for<0, R>([&](auto r) { codes[r] = rows.codes + r * chunks * kChunk; });
    static_for<0, N>([&](auto n) { chunk[n] = panels[n] + first + 4 * lanes[n]; });
    auto scales = make_array<N>([&](auto n) { return Scales<Isa, F>(panels[n], per_block, lanes[n]); });
    static_for<0, N>([&](auto n) { scales[n].seek(0); });
    Flt sums[R][N], group[R][N];
    static_for<0, R>([&](auto r) { static_for<0, N>([&](auto n) { sums[r][n] = group[r][n] = Isa::zero(); }); });
    int64_t left = per_block, begin = 0;  // of a group
    for (int64_t c = 0; c < chunks; ++c) {
        if constexpr (Wide) {
            Int products[R][N];
            multiply<Isa, F, R, N, 0>(rows, c, codes, chunk, products);
            static_for<0, R>([&](auto r) {
                const Flt x = Isa::broadcast(rows.scales[r * chunks + c]);
                static_for<0, N>([&](auto n) { group[r][n] = Isa::fma(Isa::to_floats(products[r][n]), x, group[r][n]); });
            });
        } else {
            add_chunk<Isa, F, R, N>(rows, c, codes, chunk, scales, sums);
        }
        if constexpr (Wide) {
            if (--left == 0 || c + 1 == chunks) {
                static_for<0, R>([&](auto r) {
                    const Flt shift = shape.has_minimum ? Isa::broadcast(shift_of_group(rows, r, begin, c + 1)) : Isa::zero();
                    static_for<0, N>([&](auto n) {
                        sums[r][n] = Isa::fma(group[r][n], scales[n].scale(0), sums[r][n]);
                        if constexpr (shape.has_minimum) sums[r][n] = Isa::fma(scales[n].minimum(0), shift, sums[r][n]);
                        group[r][n] = Isa::zero();
                    });
                });
                left = per_block;
                begin = c + 1;
            }
        }
        static_for<0, N>([&](auto n) {
            if (asks && (N == 1 || n == 0 || panels[n] != panels[0]))
                static_for<0, bytes / kLine>([&](auto line) { Isa::prefetch(chunk[n] + kAhead + kLine * line); });
            chunk[n] += bytes;
            scales[n].next();
        });
        static_for<0, R>([&](auto r) { codes[r] += kChunk; });
        const bool ends_block = (c + 1) % kBlockChunks == 0 || c + 1 == chunks;
        if (!ends_block || !has_block(refined, c / kBlockChunks)) continue;
        static_for<0, R>([&](auto r) {
            for_finer(rows, r, c / kBlockChunks * kBlockChunks, c + 1, [&](Finer& finer) __attribute__((always_inline)) {
                Flt its[1][N];
                static_for<0, N>([&](auto n) { its[0][n] = sums[r][n]; });
                add_finer<Isa, F, N>(matrix, finer, panels, lanes, its);
                static_for<0, N>([&](auto n) { sums[r][n] = its[0][n]; });
            });
        });
    }
    static_for<0, R>([&](auto r) { static_for<0, N>([&](auto n) { Isa::store(y + (r * N + n) * Isa::lanes, sums[r][n]); }); });
}

// --- unpacked codes -----------------------------------------------------------------------------------------------------

// Codes and scales of N units and up to kBlockChunks chunks, unpacked. Codes of a unit lie one quad after the other.
template <class Isa, int N>
struct Unpacked {
    alignas(64) uint8_t codes[kBlockChunks][kQuads][N][4 * Isa::lanes];
    alignas(64) float scales[kBlockChunks][2][N][Isa::lanes];
    alignas(64) float minima[kBlockChunks][2][N][Isa::lanes];
};

template <class Isa, Format F, bool Wide, int N>
[[gnu::flatten]] inline void unpack(const Matrix& matrix, const uint8_t* const (&panels)[N], const int (&lanes)[N], int64_t begin,
                                    int64_t end, Unpacked<Isa, N>& out) {
    constexpr Shape shape = shape_of(F);
    constexpr int bytes = kPanel * kChunk * shape.bits / 8;
    static_for<0, N>([&](auto n) {
        Scales<Isa, F> scales(panels[n], matrix.chunks_of_block(), lanes[n]);
        const uint8_t* chunk = panels[n] + matrix.parameter_bytes() + begin * bytes + 4 * lanes[n];
        scales.seek(begin);
        for (int64_t c = 0; c < end - begin; ++c) {
            if constexpr (Isa::has_two_rows) {
                static_for<0, kQuads / 2>([&](auto two) {
                    constexpr int quad = 2 * two;
                    const auto codes = quad_of<Isa, F, quad>(chunk), next = quad_of<Isa, F, quad + 1>(chunk);
                    Isa::store(out.codes[c][quad][n], Isa::first_outputs(codes, next));
                    Isa::store(out.codes[c][quad + 1][n], Isa::last_outputs(codes, next));
                });
            } else {
                static_for<0, kQuads>([&](auto quad) { Isa::store(out.codes[c][quad][n], quad_of<Isa, F, quad>(chunk)); });
            }
            static_for<0, kChunk / shape.sub>([&](auto half) {
                Isa::store(out.scales[c][half][n], scales.scale(half));
                if constexpr (shape.has_minimum) Isa::store(out.minima[c][half][n], scales.minimum(half));
            });
            scales.next();
            static_for<0, bytes / kLine>([&](auto line) { Isa::prefetch(chunk + kAhead + kLine * line); });
            chunk += bytes;
        }
    });
}

// R rows by N unpacked units, chunks [begin, end) of the rows. `sums` [R][N][lanes] is continued, and so is `group`, what the group
// has so far in which the chunks begin, where groups are wide. `at`: the place of chunk `begin` in the block.
template <class Isa, bool Signed, int Fits, int Subs, bool Minimum, bool Wide, int Offset, int R, int N>
inline void unpacked_rows(const Unpacked<Isa, N>& block, const Rows& rows, int64_t begin, int64_t end, int64_t chunks_of_group,
                          float* sums, float* group, int64_t at = 0) {
    using Int = typename Isa::Int;
    using Flt = typename Isa::Flt;
    const int64_t chunks = rows.chunks;
    const int8_t* codes[R];
    Flt total[R][N];
    static_for<0, R>([&](auto r) {
        codes[r] = rows.codes + (r * chunks + begin) * kChunk;
        static_for<0, N>([&](auto n) { total[r][n] = Isa::load((Wide ? group : sums) + (r * N + n) * Isa::lanes); });
    });
    const auto taken = static_cast<int64_t>(static_cast<uint32_t>(begin) % static_cast<uint32_t>(chunks_of_group));
    int64_t left = chunks_of_group - taken, first = begin - taken;
    for (int64_t c = begin; c < end; ++c) {
        const int64_t place = at + c - begin;
        const auto& unit = block.codes[place];
        static_for<0, Subs>([&](auto half) {
            Int products[R][N];
            const auto start = [&](auto r) {
                return times<Isa, Offset>(rows.sums + (r * chunks + c) * kSums + sum_index(kChunk / Subs, half));
            };
            constexpr int quads = kQuads / Subs;
            const auto unpacked = [&](auto n, auto quad) { return Isa::load(unit[quad][n]); };
            if constexpr (Isa::has_two_rows) {
                static_for<0, R>([&](auto r) {
                    const Int first = start(r);
                    static_for<0, N>([&](auto n) { products[r][n] = first; });
                });
                add_by_two_rows<Isa, R, N, half * quads, (half + 1) * quads>(codes, products, unpacked);
            } else {
                sum_products<Isa, Signed, Fits, R, N, half * quads, (half + 1) * quads>(codes, products, unpacked, start);
            }
            Flt scale[N];
            if constexpr (!Wide) static_for<0, N>([&](auto n) { scale[n] = Isa::load(block.scales[place][half][n]); });
            static_for<0, R>([&](auto r) {
                Flt x = Isa::broadcast(rows.scales[r * chunks + c]);
                static_for<0, N>([&](auto n) {
                    const Flt factor = Wide ? x : Isa::mul(scale[n], x);
                    total[r][n] = Isa::fma(Isa::to_floats(products[r][n]), factor, total[r][n]);
                });
            });
            if constexpr (Minimum && !Wide) {
                Flt minimum[N];
                static_for<0, N>([&](auto n) { minimum[n] = Isa::load(block.minima[place][half][n]); });
                static_for<0, R>([&](auto r) {
                    Flt shift = Isa::broadcast(rows.shifts[(r * chunks + c) * kShifts + sum_index(kChunk / Subs, half)]);
                    static_for<0, N>([&](auto n) { total[r][n] = Isa::fma(minimum[n], shift, total[r][n]); });
                });
            }
        });
        static_for<0, R>([&](auto r) { codes[r] += kChunk; });
        if constexpr (Wide) {
            if (--left == 0 || c + 1 == chunks) {
                static_for<0, R>([&](auto r) {
                    const Flt shift = Minimum ? Isa::broadcast(shift_of_group(rows, r, first, c + 1)) : Isa::zero();
                    static_for<0, N>([&](auto n) {
                        float* to = sums + (r * N + n) * Isa::lanes;
                        Flt sum = Isa::fma(total[r][n], Isa::load(block.scales[place][0][n]), Isa::load(to));
                        if constexpr (Minimum) sum = Isa::fma(Isa::load(block.minima[place][0][n]), shift, sum);
                        Isa::store(to, sum);
                        total[r][n] = Isa::zero();
                    });
                });
                left = chunks_of_group;
                first = c + 1;
            }
        }
    }
    static_for<0, R>([&](auto r) {
        static_for<0, N>([&](auto n) { Isa::store((Wide ? group : sums) + (r * N + n) * Isa::lanes, total[r][n]); });
    });
}

// --- a matrix -----------------------------------------------------------------------------------------------------------

// Wide: groups have several chunks, whose sums get the group's scale and minimum once.
template <class Isa, Format F, bool Wide>
class Tiles {
    static constexpr Shape kShape = shape_of(F);
    static constexpr int kUnits = kPanel / Isa::lanes;  // of a panel
    static constexpr int kSubs = kChunk / kShape.sub;
    static constexpr int kFew = Isa::few_rows;
    static constexpr int kMany = Isa::many_rows;
    static constexpr int kLargest = is_unpacked<Isa, F>() ? kFew : kMany;  // tile of codes as they lie

public:
    Tiles(const Matrix& matrix, const Rows& rows, int64_t num_rows, float* y, int64_t y_stride)
        : matrix_(matrix), rows_(rows), num_rows_(num_rows), y_(y), stride_(y_stride) {}

    // Some units are taken together; what is missing to their number is the first once more, whose results are not written.
    void run(int64_t first, int64_t last) const {
        for (int64_t unit = first * kUnits, end = last * kUnits; unit < end; unit += kTaken)
            units(unit, static_cast<int>(least(kTaken, end - unit)));
    }

private:
    static constexpr int kTaken = Isa::units;
    static constexpr int kWidth = kTaken * Isa::lanes;

    // Units that are taken together, `count` of which are different.
    struct Units {
        int64_t first;
        int count;
        const uint8_t* panels[kTaken];
        int lanes[kTaken];
    };

    [[gnu::flatten]] void units(int64_t first, int count) const {
        Units of{first, count, {}, {}};
        static_for<0, kTaken>([&](auto n) {
            const int64_t unit = first + (n < count ? n : 0);
            of.panels[n] = matrix_.panel(unit / kUnits);
            of.lanes[n] = static_cast<int>(unit % kUnits) * Isa::lanes;
        });
        if constexpr (is_unpacked<Isa, F>()) {
            if (num_rows_ > Isa::most_few) return unpacked(of);
        }
        alignas(64) float sums[kBlockRows * kWidth];
        for (int64_t row = 0; row < num_rows_; row += kBlockRows) {
            const int64_t here = least(kBlockRows, num_rows_ - row);
            in_tiles<kLargest, kFew, 2, 1>(here, [&](int64_t r, auto some) {
                direct_rows<Isa, F, Wide, some, kTaken>(matrix_, row_of(rows_, row + r), of.panels, of.lanes, sums + r * kWidth,
                                                        row + r == 0);
            });
            write_all(of, row, here, sums);
        }
    }

    [[gnu::flatten, gnu::noinline]] void unpacked(const Units& of) const {
        alignas(64) float sums[kBlockRows * kWidth], group[Wide ? kBlockRows * kWidth : 1];
        Unpacked<Isa, kTaken> block;
        for (int64_t row = 0; row < num_rows_; row += kBlockRows) {
            const int64_t here = least(kBlockRows, num_rows_ - row);
            std::memset(sums, 0, sizeof(float) * here * kWidth);
            if (Wide) std::memset(group, 0, sizeof(float) * here * kWidth);
            uint64_t refined[kBlockRows];
            for (int64_t r = 0; r < here; ++r) refined[r] = refined_blocks(rows_, row + r);
            for (int64_t begin = 0; begin < rows_.chunks; begin += kBlockChunks) {
                const int64_t end = least(begin + kBlockChunks, rows_.chunks);
                unpack<Isa, F, Wide, kTaken>(matrix_, of.panels, of.lanes, begin, end, block);
                in_tiles<kMany, 2, 1>(here, [&](int64_t r, auto some) {
                    unpacked_rows<Isa, is_signed<Isa, F>(), quads_in_16_bits<F>(), kSubs, kShape.has_minimum, Wide,
                                  offset_of<Isa>(F), some, kTaken>(block, row_of(rows_, row + r), begin, end,
                                                                   matrix_.chunks_of_block(), sums + r * kWidth,
                                                                   Wide ? group + r * kWidth : group);
                });
                for (int64_t r = 0; r < here; ++r)
                    if (has_block(refined[r], begin / kBlockChunks)) add_refined(block, row + r, begin, end, sums + r * kWidth);
            }
            write_all(of, row, here, sums);
        }
    }

    // Calls `take(row, number)` for each of the rows, as many at a time as the first number says while there are so many, then the next.
    template <int... Numbers, class Take>
    static void in_tiles(int64_t count, const Take& take) {
        int64_t row = 0;
        const auto tiles_of = [&](auto number) {
            for (; row + number <= count; row += number) take(row, number);
        };
        (tiles_of(std::integral_constant<int, Numbers>{}), ...);
    }

    // Adds what the codes of these chunks leave out of a row.
    void add_refined(const Unpacked<Isa, kTaken>& block, int64_t row, int64_t begin, int64_t end, float* sums) const {
        for_finer(rows_, row, begin, end, [&](Finer& finer) __attribute__((always_inline)) {
            unpacked_rows<Isa, is_signed<Isa, F>(), quads_in_16_bits<F>(), kSubs, kShape.has_minimum, false, offset_of<Isa>(F), 1,
                          kTaken>(block, finer.row(), 0, 1, 1, sums, nullptr, finer.chunk - begin);
        });
    }

    void write_all(const Units& of, int64_t row, int64_t count, const float* sums) const {
        for (int64_t r = 0; r < count; ++r)
            for (int n = 0; n < of.count; ++n) write(row + r, of.first + n, Isa::load(sums + r * kWidth + n * Isa::lanes));
    }

    void write(int64_t row, int64_t unit, typename Isa::Flt values) const {
        int64_t output = unit * Isa::lanes, left = matrix_.outputs - output;
        float* to = y_ + row * stride_ + output;
        if (left >= Isa::lanes) {
            Isa::store(to, values);
        } else if (left > 0) {
            float all[Isa::lanes];
            Isa::store(all, values);
            std::memcpy(to, all, sizeof(float) * left);
        }
    }

    const Matrix& matrix_;
    const Rows& rows_;
    int64_t num_rows_;
    float* y_;
    int64_t stride_;
};

template <class Isa>
void product_with(const Matrix& matrix, const Rows& rows, int64_t num_rows, int64_t first, int64_t last, float* y,
                  int64_t y_stride) {
    static_for<0, static_cast<int>(Format::count)>([&](auto format) {
        constexpr Format kFormat = static_cast<Format>(format.value);
        if (matrix.format != kFormat) return;
        if constexpr (shape_of(kFormat).codes == Codes::floats) {
            FloatTiles<Isa, kFormat>(matrix, rows, num_rows, y, y_stride).run(first, last);
        } else {
            if constexpr (may_be_wide(kFormat)) {
                if (matrix.is_wide()) return Tiles<Isa, kFormat, true>(matrix, rows, num_rows, y, y_stride).run(first, last);
            }
            Tiles<Isa, kFormat, false>(matrix, rows, num_rows, y, y_stride).run(first, last);
        }
    });
}

template <class Isa>
constexpr Kernels kernels_of(const AttentionKernels& attention) {
    return {Isa::name,          quantise_with<Isa>, codes_with<Isa>, file_panel_with<Isa>,
            activate_with<Isa>, product_with<Isa>,  &attention};
}

}  // namespace dragoman
