// Divides a step's attention into tasks, which threads share. See attention.hpp.
//
// A task is one or several parts of the context, for one head of keys and some of the step's tokens: neighbours in a row, or single
// tokens whose blocks are the same there. A tile of neighbours, or a token that shares no blocks, reads its whole context in one task if
// there are enough of them for all threads. Everything else reads one part in a task, and keeps what it read until all is joined in
// the order of parts.
#include "attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

#include "attention_kernels.hpp"
#include "kernels.hpp"
#include "parts.hpp"

namespace dragoman {
namespace {

constexpr int64_t kBlocks = kPartTokens / kSlots;  // of a part
constexpr int64_t kTileRows = 64;                  // heads of queries times tokens of a tile
constexpr int64_t kSharedRows = 128;               // of single tokens that read the same blocks
constexpr int64_t kFewTasks = 32;                  // so few tiles may leave threads without work
constexpr int64_t kFewSingles = 16;    // tasks of equal size: a single token's whole context is no larger than one of them
constexpr int64_t kSmall = 64 * 1024;  // numbers read, which are not worth threads
constexpr int64_t kMostKept = 16 * 1024 * 1024;  // numbers that a thread keeps memory for

// Those of the instruction set that products are computed with, and where that is AVX-512 what the processor has beside it.
const AttentionKernels& used_kernels() {
#if defined(DRAGOMAN_HAS_AVX512BF16)
    if (kernels().attention == &kAvx512Attention && __builtin_cpu_supports("avx512bf16")) return kAvx512Bf16Attention;
#endif
    return *kernels().attention;
}

// A token of the step. Block i of its context, counted from position 0, is blocks[i - passed].
struct Token {
    int64_t index, position, begin, end;  // it sees positions from `begin` to `end`
    const int32_t* blocks;
    int64_t passed;
    int64_t partials;  // the place of what it reads of its first part, -1 where nothing is kept

    int64_t first_part() const { return begin / kPartTokens; }
    int64_t end_part() const { return (end + kPartTokens - 1) / kPartTokens; }
    int64_t first_block(int64_t part) const { return std::max(part * kBlocks, passed); }
    int64_t end_block(int64_t part) const { return std::min((part + 1) * kBlocks, (end + kSlots - 1) / kSlots); }
};

// Tokens order[first] to order[first + count - 1] read parts of their context.
struct Task {
    int64_t first, count, begin, end;
};

struct Plan {
    std::vector<Token> tokens;
    std::vector<int32_t> order;
    std::vector<Task> tasks;
    int64_t num_partials = 0, num_read = 0;
};

// What a thread computes with.
struct Memory {
    std::vector<float> q, q_scales, slopes, distances, scores, most, sums, mixed, joined, state;
    std::vector<uint16_t> q_codes;
    std::vector<int32_t> q_sums, begins, ends;
};

Memory& memory() {
    static thread_local Memory held_by_thread;
    return held_by_thread;
}

std::vector<float>& spread_queries() {
    static thread_local std::vector<float> held_by_thread;
    return held_by_thread;
}

std::vector<float>& partials() {
    static thread_local std::vector<float> held_by_thread;
    return held_by_thread;
}

class Planner {
public:
    Planner(const Attention& how, const AttentionStep& step, Plan& plan) : how_(how), step_(step), plan_(plan) {}

    void run() {
        plan_.tokens.reserve(step_.num_tokens);
        std::vector<std::pair<int64_t, int64_t>> tiles;  // their first tokens, and where they end
        const int64_t together = std::max<int64_t>(kTileRows / how_.group(), 1);
        for (int64_t row = 0; row < step_.num_rows; ++row) {
            const int64_t first = step_.begins[row], end = step_.begins[row + 1];
            add_tokens(row);
            if (end - first == 1) {
                singles_.push_back(first);
            } else {
                for (int64_t token = first; token < end; token += together)
                    tiles.emplace_back(token, std::min(token + together, end));
            }
        }
        const bool is_divided = static_cast<int64_t>(tiles.size()) * how_.kv_heads < kFewTasks;
        for (const auto& [first, end] : tiles) add_tile(first, end, is_divided);
        add_singles();
    }

private:
    void add_tokens(int64_t row) {
        const int64_t first = step_.begins[row], end = step_.begins[row + 1];
        for (int64_t token = first; token < end; ++token) {
            const int64_t position = step_.positions[token], passed = position - step_.past[row] - (token - first);
            const int64_t begin = how_.window ? std::max<int64_t>(position - how_.window + 1, 0) : 0;
            plan_.tokens.push_back({token, position, std::max(begin, passed), position + 1,
                                    step_.blocks + step_.block_begins[row], passed / kSlots, -1});
        }
        if (step_.types == nullptr) return;
        for (int64_t token = first; token < end;) {
            int64_t last = token;
            while (last < end && step_.types[last] == 1) ++last;
            for (int64_t each = token; each < last; ++each) {
                Token& seeing = plan_.tokens[each];
                seeing.begin = std::min(seeing.begin, plan_.tokens[token].position);
                seeing.end = plan_.tokens[last - 1].position + 1;
            }
            token = std::max(last, token + 1);
        }
    }

    void keep(Token& token) {
        token.partials = plan_.num_partials;
        plan_.num_partials += token.end_part() - token.first_part();
    }

    void add_tile(int64_t first, int64_t end, bool is_divided) {
        const int64_t place = static_cast<int64_t>(plan_.order.size());
        int64_t begin_part = INT64_MAX, end_part = 0;
        for (int64_t index = first; index < end; ++index) {
            Token& token = plan_.tokens[index];
            plan_.order.push_back(static_cast<int32_t>(index));
            if (is_divided) keep(token);
            begin_part = std::min(begin_part, token.first_part());
            end_part = std::max(end_part, token.end_part());
        }
        plan_.num_read += (end_part - begin_part) * kPartTokens * (end - first);
        if (!is_divided) return plan_.tasks.push_back({place, end - first, begin_part, end_part});
        for (int64_t part = begin_part; part < end_part; ++part) plan_.tasks.push_back({place, end - first, part, part + 1});
    }

    // Single tokens that read the same blocks of a part together.
    struct Group {
        int64_t part;
        std::vector<int32_t> tokens;
        int64_t longest;  // the token with most blocks of the part
    };

    // Single tokens that read the same first block may read more together. The others read their whole context in one task, unless that
    // is so much of all that threads would wait for it.
    void add_singles() {
        std::vector<std::vector<int64_t>> neighbours;
        std::unordered_map<int64_t, size_t> found;
        int64_t num_parts = 0;
        for (int64_t index : singles_) {
            const Token& token = plan_.tokens[index];
            plan_.num_read += token.end - token.begin;
            num_parts += token.end_part() - token.first_part();
            const auto [place, is_new] = found.try_emplace(first_key(token, token.first_part()), neighbours.size());
            if (is_new) neighbours.emplace_back();
            neighbours[place->second].push_back(index);
        }
        for (const std::vector<int64_t>& tokens : neighbours) {
            const Token& token = plan_.tokens[tokens[0]];
            const int64_t parts = token.end_part() - token.first_part();
            if (tokens.size() == 1 && parts * kFewSingles <= num_parts * how_.kv_heads) {
                plan_.tasks.push_back({static_cast<int64_t>(plan_.order.size()), 1, token.first_part(), token.end_part()});
                plan_.order.push_back(static_cast<int32_t>(tokens[0]));
            } else {
                add_parts(tokens);
            }
        }
    }

    // A part and the first block that a token reads there.
    static int64_t first_key(const Token& token, int64_t part) {
        return part << 32 | token.blocks[token.first_block(part) - token.passed];
    }

    // Tasks of one part each; tokens that read the same blocks of it read them together.
    void add_parts(const std::vector<int64_t>& tokens) {
        std::vector<Group> groups;
        std::unordered_map<int64_t, size_t> found;
        const size_t most = std::max<int64_t>(kSharedRows / how_.group(), 1);
        for (int64_t index : tokens) {
            Token& token = plan_.tokens[index];
            keep(token);
            for (int64_t part = token.first_part(); part < token.end_part(); ++part) {
                if (tokens.size() > 1) {
                    const auto [place, is_new] = found.try_emplace(first_key(token, part), groups.size());
                    if (!is_new) {
                        Group& group = groups[place->second];
                        if (group.tokens.size() < most && agree(group, token)) {
                            group.tokens.push_back(static_cast<int32_t>(index));
                            if (token.end_block(part) > plan_.tokens[group.longest].end_block(part)) group.longest = index;
                            continue;
                        }
                        place->second = groups.size();
                    }
                }
                groups.push_back({part, {static_cast<int32_t>(index)}, index});
            }
        }
        for (const Group& group : groups) {
            plan_.tasks.push_back({static_cast<int64_t>(plan_.order.size()), static_cast<int64_t>(group.tokens.size()),
                                   group.part, group.part + 1});
            plan_.order.insert(plan_.order.end(), group.tokens.begin(), group.tokens.end());
        }
    }

    // Whether a token's blocks of the part are the group's, as far as both have some.
    bool agree(const Group& group, const Token& token) const {
        const Token& other = plan_.tokens[group.longest];
        const int64_t first = token.first_block(group.part);
        if (first != other.first_block(group.part)) return false;
        const int64_t end = std::min(token.end_block(group.part), other.end_block(group.part));
        return std::equal(token.blocks + first - token.passed, token.blocks + end - token.passed,
                          other.blocks + first - other.passed);
    }

    const Attention& how_;
    const AttentionStep& step_;
    Plan& plan_;
    std::vector<int64_t> singles_;
};

// Runs one task for one head of keys.
class Reader {
public:
    // `queries`: the step's, spread as keys are.
    Reader(const AttentionKernels& kernels, const Attention& how, const AttentionStep& step, const float* queries,
           const Plan& plan, const Task& task, int64_t kv_head, float* partials)
        : kernels_(kernels),
          how_(how),
          step_(step),
          queries_(queries),
          plan_(plan),
          task_(task),
          kv_head_(kv_head),
          group_(how.group()),
          padded_(how.padded()),
          rows_(task.count * group_),
          partials_(partials),
          memory_(memory()) {}

    void run() {
        fill_queries();
        const bool is_kept = token(0).partials >= 0;
        if (!is_kept) start_states();
        for (int64_t part = task_.begin; part < task_.end; ++part) {
            if (!read(part)) continue;
            for (int64_t row = 0; row < rows_; ++row) {
                const Token& seeing = token(row / group_);
                const float *mixed = memory_.mixed.data() + row * padded_, most = memory_.most[row], sum = memory_.sums[row];
                if (!is_kept) {
                    RowState state = {memory_.state[2 * row], memory_.state[2 * row + 1], memory_.joined.data() + row * padded_};
                    kernels_.join(state, most, sum, mixed, padded_);
                    memory_.state[2 * row] = state.most;
                    memory_.state[2 * row + 1] = state.sum;
                } else if (part >= seeing.first_part() && part < seeing.end_part()) {
                    const int64_t place = seeing.partials + part - seeing.first_part();
                    float* kept = partials_ + (place * how_.heads + head_of(row)) * (padded_ + 2);
                    kept[0] = most;
                    kept[1] = sum;
                    std::memcpy(kept + 2, mixed, sizeof(float) * padded_);
                }
            }
        }
        if (is_kept) return;
        for (int64_t row = 0; row < rows_; ++row) {
            const RowState state = {memory_.state[2 * row], memory_.state[2 * row + 1], memory_.joined.data() + row * padded_};
            float* y = step_.y + (token(row / group_).index * how_.heads + head_of(row)) * how_.value;
            kernels_.finish(state, how_.value, y);
        }
    }

private:
    const Token& token(int64_t index) const { return plan_.tokens[plan_.order[task_.first + index]]; }
    int64_t head_of(int64_t row) const { return kv_head_ * group_ + row % group_; }

    void fill_queries() {
        const int64_t head = how_.head, step = (head + kPadding - 1) / kPadding * kPadding;
        float* q = held(memory_.q, rows_ * step);
        held(memory_.slopes, rows_);
        for (int64_t row = 0; row < rows_; ++row) {
            const float* from = queries_ + (token(row / group_).index * how_.heads + head_of(row)) * head;
            float* to = q + row * step;
            for (int64_t i = 0; i < head; ++i) to[i] = from[i] * how_.scale;
            std::fill(to + head, to + step, 0.0f);
            if (how_.slopes) memory_.slopes[row] = how_.slopes[head_of(row)];
        }
        reading_.how = &how_;
        reading_.num_rows = rows_;
        reading_.q_step = step;
        reading_.q = q;
        reading_.slopes = how_.slopes ? memory_.slopes.data() : nullptr;
        if (how_.together() == 1) return;
        uint16_t* codes = held(memory_.q_codes, (rows_ + 1) * step);
        float* scales = held(memory_.q_scales, rows_);
        int32_t* sums = held(memory_.q_sums, rows_);
        kernels_.round_queries(reading_, codes, scales, sums);
        reading_.q_codes = codes;
        reading_.q_scales = scales;
        reading_.q_sums = sums;
    }

    void start_states() {
        held(memory_.joined, rows_ * padded_);
        held(memory_.state, rows_ * 2);
        for (int64_t row = 0; row < rows_; ++row) {
            memory_.state[2 * row] = how_.sinks ? how_.sinks[head_of(row)] : -INFINITY;
            memory_.state[2 * row + 1] = how_.sinks ? 1.0f : 0.0f;
            if (how_.sinks) std::fill_n(memory_.joined.data() + row * padded_, padded_, 0.0f);
        }
    }

    // Reads a part; false if nobody sees any of it.
    bool read(int64_t part) {
        PartOfRows& reading = reading_;
        float* distances = held(memory_.distances, rows_);
        int32_t *begins = held(memory_.begins, rows_), *ends = held(memory_.ends, rows_);
        const int64_t start = part * kPartTokens;
        reading.begin = kPartTokens;
        reading.end = 0;
        const Token* longest = &token(0);
        for (int64_t index = 0; index < task_.count; ++index) {
            const Token& seeing = token(index);
            const auto begin = static_cast<int32_t>(std::clamp<int64_t>(seeing.begin - start, 0, kPartTokens));
            const auto end = static_cast<int32_t>(std::clamp<int64_t>(seeing.end - start, 0, kPartTokens));
            std::fill_n(begins + index * group_, group_, begin);
            std::fill_n(ends + index * group_, group_, end);
            std::fill_n(distances + index * group_, group_, static_cast<float>(start - seeing.position));
            if (begin >= end) continue;
            reading.begin = std::min(reading.begin, begin);
            reading.end = std::max(reading.end, end);
            if (seeing.end > longest->end) longest = &seeing;
        }
        if (reading.begin >= reading.end) return false;
        reading.distances = distances;
        reading.begins = begins;
        reading.ends = ends;
        const int64_t key_bytes = how_.key_bytes(), value_bytes = how_.value_bytes();
        const uint8_t *keys[kBlocks] = {}, *values[kBlocks] = {};
        const int64_t first = reading.begin / kSlots, last = (reading.end + kSlots - 1) / kSlots;
        const auto place = [&](int64_t block) {
            return longest->blocks[part * kBlocks + block - longest->passed] * how_.kv_heads;
        };
        for (int64_t block = first; block < last; ++block) {
            keys[block] = step_.key_cache + (place(block) + kv_head_) * key_bytes;
            values[block] = step_.value_cache + (place(block) + kv_head_) * value_bytes;
        }
        const uint8_t* next[kBlocks] = {keys[last - 1]};
        reading.num_next = part + 1 < task_.end            ? find_keys(task_, part + 1, kv_head_, next)
                           : kv_head_ + 1 < how_.kv_heads  ? find_keys(task_, task_.begin, kv_head_ + 1, next)
                           : &task_ == &plan_.tasks.back() ? 1
                                                           : find_keys((&task_)[1], (&task_)[1].begin, 0, next);
        reading.next_keys = next;
        reading.keys = keys;
        reading.values = values;
        reading.scores = held(memory_.scores, rows_ * kPartTokens);
        reading.most = held(memory_.most, rows_);
        reading.sums = held(memory_.sums, rows_);
        reading.mixed = held(memory_.mixed, rows_ * padded_);
        kernels_.read(reading);
        return true;
    }

    // The blocks of keys of a part, as far as a task's first token has some; their number, or 1.
    int64_t find_keys(const Task& task, int64_t part, int64_t kv_head, const uint8_t** keys) const {
        const Token& first = plan_.tokens[plan_.order[task.first]];
        int64_t count = 0;
        for (int64_t block = first.first_block(part); block < first.end_block(part); ++block)
            keys[count++] = step_.key_cache + (first.blocks[block - first.passed] * how_.kv_heads + kv_head) * how_.key_bytes();
        return std::max<int64_t>(count, 1);
    }

    const AttentionKernels& kernels_;
    const Attention& how_;
    const AttentionStep& step_;
    const float* queries_;
    const Plan& plan_;
    const Task& task_;
    const int64_t kv_head_, group_, padded_, rows_;
    float* partials_;
    Memory& memory_;
    PartOfRows reading_{};
};

void write(const AttentionKernels& kernels, const Attention& how, const AttentionStep& step, const Plan& plan, int64_t index) {
    const Token& token = plan.tokens[index];
    const int64_t block = token.blocks[token.position / kSlots - token.passed] * how.kv_heads, slot = token.position % kSlots;
    for (int64_t head = 0; head < how.kv_heads; ++head) {
        kernels.write(how, step.k + (index * how.kv_heads + head) * how.head, step.v + (index * how.kv_heads + head) * how.value,
                      slot, step.key_cache + (block + head) * how.key_bytes(),
                      step.value_cache + (block + head) * how.value_bytes());
    }
}

// Joins what a token has read, part by part.
void join(const AttentionKernels& kernels, const Attention& how, const AttentionStep& step, const Token& token,
          const float* partials) {
    const int64_t padded = how.padded();
    float* mixed = held(memory().joined, padded);
    for (int64_t head = 0; head < how.heads; ++head) {
        RowState state = {how.sinks ? how.sinks[head] : -INFINITY, how.sinks ? 1.0f : 0.0f, mixed};
        if (how.sinks) std::fill_n(mixed, padded, 0.0f);
        for (int64_t part = 0; part < token.end_part() - token.first_part(); ++part) {
            const float* kept = partials + ((token.partials + part) * how.heads + head) * (padded + 2);
            kernels.join(state, kept[0], kept[1], kept + 2, padded);
        }
        kernels.finish(state, how.value, step.y + (token.index * how.heads + head) * how.value);
    }
}

}  // namespace

const char* fault_of(const Attention& how, const AttentionStep& step) {
    if (step.begins[0] != 0 || step.begins[step.num_rows] != step.num_tokens) return "rows do not end where tokens do";
    for (int64_t row = 0; row < step.num_rows; ++row) {
        const int64_t first = step.begins[row], count = step.begins[row + 1] - first, past = step.past[row];
        const int64_t begin = step.block_begins[row], blocks = step.block_begins[row + 1] - begin;
        if (count < 1) return "a row has no tokens";
        if (first + count > step.num_tokens) return "rows do not end where tokens do";
        if (begin < 0 || blocks < 1 || begin + blocks > step.num_table_blocks) return "the blocks of a row are not in the table";
        const int64_t passed = step.positions[first] - past;
        if (past < 0 || passed < 0 || passed % kSlots || (passed && how.window == 0))
            return "positions do not fit the tokens before a row";
        for (int64_t token = 1; token < count; ++token)
            if (step.positions[first + token] != step.positions[first] + token)
                return "positions of a row do not follow each other";
        if (past + count > blocks * kSlots) return "a row has more tokens than its blocks";
        for (int64_t block = begin; block < begin + blocks; ++block)
            if (step.blocks[block] < 0 || step.blocks[block] >= step.num_blocks) return "a row has a block that there is not";
    }
    return nullptr;
}

void attend(const Attention& how, const AttentionStep& step, const ParallelFor& parallel_for) {
    attend_with(used_kernels(), how, step, parallel_for);
}

void attend_with(const AttentionKernels& kernels, const Attention& how, const AttentionStep& step,
                 const ParallelFor& parallel_for) {
    if (step.num_tokens == 0) return;
    Plan plan;
    Planner(how, step, plan).run();
    const bool spreads = how.spread() > 1;
    std::vector<float>& spread = spread_queries();
    float* queries = spreads ? held(spread, step.num_tokens * how.heads * how.head) : nullptr;
    const auto prepare = [&](int64_t token) {
        write(kernels, how, step, plan, token);
        const int64_t place = token * how.heads * how.head;
        if (spreads) kernels.spread_queries(how, step.q + place, queries + place);
    };
    // In 8 bits the first keys of blocks come before all others, which differ from them.
    std::vector<int32_t> order[2];
    for (const Token& token : plan.tokens)
        order[how.type == CacheType::u8 && token.position % kSlots != 0].push_back(static_cast<int32_t>(token.index));
    for (const std::vector<int32_t>& some : order)
        for_rows(static_cast<int64_t>(some.size()), parallel_for, [&](int64_t index) { prepare(some[index]); });
    std::vector<float>& kept = partials();
    float* partials = held(kept, plan.num_partials * how.heads * (how.padded() + 2));
    const auto run = [&](int64_t index) {
        const Task& task = plan.tasks[index / how.kv_heads];
        Reader(kernels, how, step, spreads ? queries : step.q, plan, task, index % how.kv_heads, partials).run();
    };
    const int64_t count = static_cast<int64_t>(plan.tasks.size()) * how.kv_heads;
    if (plan.num_read * how.kv_heads * (how.head + how.value) < kSmall) {
        for (int64_t index = 0; index < count; ++index) run(index);
    } else {
        parallel_for(count, run);
    }
    std::vector<int32_t> joined;
    for (const Token& token : plan.tokens)
        if (token.partials >= 0) joined.push_back(static_cast<int32_t>(token.index));
    for_rows(static_cast<int64_t>(joined.size()), parallel_for,
             [&](int64_t index) { join(kernels, how, step, plan.tokens[joined[index]], partials); });
    for (std::vector<float>* memory : {&kept, &spread})
        if (static_cast<int64_t>(memory->size()) > kMostKept) std::vector<float>().swap(*memory);
}

}  // namespace dragoman
