// llama.cpp behind long contexts, in a process of its own, without HTTP in its way.
//
// Does: answer each JSON line on standard input: {"prompt": n} with milliseconds per token of a prompt; {"streams": s,
// "context": c, "steps": n, "shares": 0 or 1} with those of a step in which s sequences decode behind c tokens each. Contexts
// are copies of a short one, for each sequence its own; with "shares" all sequences see the same cells of one cache. Flash
// attention is on, and tokens are greedy. Does not: read any JSON but such lines. `peers` builds it, with llama.cpp's own
// libraries:
//
//     llama_cpp_worker MODEL.gguf TYPE_OF_THE_CACHE NUM_THREADS

#include "llama.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int kWarmUpSteps = 2;
constexpr int kSpareTokens = 64;  // of an answer, more than are timed
constexpr int kPiece = 512;       // tokens computed together, llama.cpp's default
constexpr uint32_t kFirstCells = kPiece;

using Context = std::unique_ptr<llama_context, decltype(&llama_free)>;

double now_ms() {
    const auto time = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::milli>(time).count();
}

// The number behind a key, or `missing`.
long number_of(const std::string &line, const std::string &key, long missing) {
    const std::string quoted = "\"" + key + "\":";
    const size_t found = line.find(quoted);
    return found == std::string::npos ? missing : std::strtol(line.c_str() + found + quoted.size(), nullptr, 10);
}

ggml_type cache_type(const std::string &name) {
    const std::map<std::string, ggml_type> types = {
        {"q8_0", GGML_TYPE_Q8_0}, {"f16", GGML_TYPE_F16}, {"bf16", GGML_TYPE_BF16}, {"f32", GGML_TYPE_F32}};
    const auto found = types.find(name);
    if (found == types.end()) throw std::runtime_error("Error: no cache of type " + name);
    return found->second;
}

class Worker {
public:
    Worker(const char *path, const std::string &type, int num_threads)
        : model_(llama_model_load_from_file(path, llama_model_default_params()), llama_model_free),
          type_(cache_type(type)), num_threads_(num_threads) {
        if (!model_) throw std::runtime_error(std::string("Error: no model in ") + path);
        vocab_size_ = llama_vocab_n_tokens(llama_model_get_vocab(model_.get()));
    }

    double prompt_ms(int num_tokens) {
        const Context context = make(1, num_tokens, false);
        const double begin = now_ms();
        prefill(context.get(), 0, num_tokens);
        return (now_ms() - begin) / num_tokens;
    }

    double step_ms(int streams, int length, int num_steps, bool shares) {
        const std::vector<uint8_t> state = for_streams(state_of(length), shares ? 1 : streams);
        const int cells = shares ? length + streams * kSpareTokens : streams * padded(length + kSpareTokens);
        const Context context = make(streams, cells, shares);
        llama_memory_t memory = llama_get_memory(context.get());
        for (int stream = 0; stream < streams; ++stream) {
            if (shares && stream > 0)
                llama_memory_seq_cp(memory, 0, stream, -1, -1);
            else if (llama_state_seq_set_data(context.get(), state.data(), state.size(), stream) == 0)
                throw std::runtime_error("Error: the context does not fit the cache");
        }
        llama_batch batch = llama_batch_init(streams, 0, 1);
        std::vector<llama_token> tokens(streams, 1);
        std::vector<double> times;
        for (int step = 0; step < kWarmUpSteps + num_steps; ++step) {
            const double begin = now_ms();
            batch.n_tokens = 0;
            for (int stream = 0; stream < streams; ++stream) add(batch, tokens[stream], length + step, stream, true);
            decode(context.get(), batch);
            for (int stream = 0; stream < streams; ++stream) {
                const float *logits = llama_get_logits_ith(context.get(), stream);
                tokens[stream] = static_cast<llama_token>(std::max_element(logits, logits + vocab_size_) - logits);
            }
            times.push_back(now_ms() - begin);
        }
        llama_batch_free(batch);
        times.erase(times.begin(), times.begin() + kWarmUpSteps);
        std::sort(times.begin(), times.end());
        return times[times.size() / 2];
    }

private:
    static int padded(int count) { return (count + 255) / 256 * 256; }  // as llama.cpp pads its caches

    Context make(int streams, int cells, bool shares) const {
        llama_context_params asked = llama_context_default_params();
        asked.n_ctx = static_cast<uint32_t>(padded(cells));
        asked.n_seq_max = static_cast<uint32_t>(streams);
        asked.n_batch = asked.n_ubatch = kPiece;
        asked.n_threads = asked.n_threads_batch = num_threads_;
        asked.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
        asked.type_k = asked.type_v = type_;
        asked.kv_unified = shares;
        Context context(llama_init_from_model(model_.get(), asked), llama_free);
        if (!context) throw std::runtime_error("Error: no memory for " + std::to_string(cells) + " tokens");
        return context;
    }

    // The state of a cache with one stream as one of so many reads it. It begins with a mark, the sequence, and the number of
    // streams; at its end, each further stream is said to be empty.
    static std::vector<uint8_t> for_streams(std::vector<uint8_t> state, int streams) {
        constexpr size_t kPlace = 2 * sizeof(uint32_t);
        const uint32_t one = 1, count = static_cast<uint32_t>(streams);
        if (state.size() < kPlace + sizeof one || std::memcmp(state.data() + kPlace, &one, sizeof one) != 0)
            throw std::runtime_error("Error: contexts of this version of llama.cpp cannot be copied");
        std::memcpy(state.data() + kPlace, &count, sizeof count);
        state.resize(state.size() + (count - 1) * sizeof count);
        return state;
    }

    static void add(llama_batch &batch, llama_token token, int position, int stream, bool has_logits) {
        const int row = batch.n_tokens++;
        batch.token[row] = token;
        batch.pos[row] = position;
        batch.n_seq_id[row] = 1;
        batch.seq_id[row][0] = stream;
        batch.logits[row] = has_logits;
    }

    static void decode(llama_context *context, const llama_batch &batch) {
        if (llama_decode(context, batch) != 0) throw std::runtime_error("Error: a step failed");
        llama_synchronize(context);
    }

    void prefill(llama_context *context, int begin, int end) const {
        llama_batch batch = llama_batch_init(kPiece, 0, 1);
        for (int place = begin; place < end; place += kPiece) {
            batch.n_tokens = 0;
            for (int position = place; position < std::min(place + kPiece, end); ++position)
                add(batch, 1 + position * 7919 % (vocab_size_ - 1), position, 0, position + 1 == end);
            decode(context, batch);
        }
        llama_batch_free(batch);
    }

    // That of a context: of the first tokens, and copies of them, as speed does not depend on what a cache holds.
    std::vector<uint8_t> state_of(int length) {
        if (first_.empty()) {
            const Context context = make(1, kPiece, false);
            prefill(context.get(), 0, kPiece);
            first_.resize(llama_state_seq_get_size(context.get(), 0));
            first_.resize(llama_state_seq_get_data(context.get(), first_.data(), first_.size(), 0));
        }
        return grown(first_, length);
    }

    // A state of kPiece cells as one of so many. After a mark, the sequence and the number of streams it has the number of
    // cells, of each its position, 1 and the sequence, two numbers for the layers, and matrices: type, bytes of a row, rows.
    static std::vector<uint8_t> grown(const std::vector<uint8_t> &state, int length) {
        constexpr size_t kNumber = sizeof(uint32_t), kCells = 3 * kNumber, kCell = 3 * kNumber;
        const uint32_t count = static_cast<uint32_t>(length);
        size_t place = kCells + kNumber + kPiece * kCell;
        const auto fail = [] { throw std::runtime_error("Error: contexts of this version of llama.cpp cannot be copied"); };
        if (state.size() < place + 2 * kNumber || std::memcmp(state.data() + kCells, &kFirstCells, kNumber) != 0) fail();
        std::vector<uint8_t> found(state.begin(), state.begin() + kCells);
        const auto append = [&found](const void *from, size_t size) {
            const auto *bytes = static_cast<const uint8_t *>(from);
            found.insert(found.end(), bytes, bytes + size);
        };
        append(&count, kNumber);
        for (uint32_t position = 0; position < count; ++position) {
            const uint32_t cell[] = {position, 1, 0};
            append(cell, kCell);
        }
        append(state.data() + place, 2 * kNumber);
        place += 2 * kNumber;
        while (place < state.size()) {
            uint64_t row = 0;
            constexpr size_t kHead = kNumber + sizeof row;
            if (state.size() - place < kHead) fail();
            std::memcpy(&row, state.data() + place + kNumber, sizeof row);
            if (row == 0 || row > (state.size() - place - kHead) / kPiece) fail();
            append(state.data() + place, kHead);
            place += kHead;
            for (uint32_t done = 0; done < count; done += kPiece)
                append(state.data() + place, std::min<size_t>(kPiece, count - done) * row);
            place += kPiece * row;
        }
        return found;
    }

    std::unique_ptr<llama_model, decltype(&llama_model_free)> model_;
    ggml_type type_;
    int num_threads_;
    int vocab_size_ = 0;
    std::vector<uint8_t> first_;  // the state of kPiece tokens
};

}  // namespace

int main(int count, char **words) {
    if (count != 4) {
        std::fprintf(stderr, "Error: must be MODEL.gguf TYPE_OF_THE_CACHE NUM_THREADS\n");
        return 2;
    }
    llama_log_set([](ggml_log_level, const char *text, void *) { std::fputs(text, stderr); }, nullptr);
    llama_backend_init();
    try {
        Worker worker(words[1], words[2], std::atoi(words[3]));
        std::printf("{\"ready\": true}\n");
        std::fflush(stdout);
        for (std::string line; std::getline(std::cin, line);) {
            const int prompt = static_cast<int>(number_of(line, "prompt", 0));
            const double taken =
                prompt > 0 ? worker.prompt_ms(prompt)
                           : worker.step_ms(static_cast<int>(number_of(line, "streams", 1)),
                                            static_cast<int>(number_of(line, "context", 1)),
                                            static_cast<int>(number_of(line, "steps", 1)), number_of(line, "shares", 0) != 0);
            std::printf("{\"ms\": %.4f}\n", taken);
            std::fflush(stdout);
        }
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
