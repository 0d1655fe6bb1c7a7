// The graph's operation for layers that keep something of a sequence.
//
// Does: check inputs and attributes, and hand pointers to the kernels. Does not: compute.
#include <locale>
#include <memory>
#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/op/op.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "recurrence.hpp"
#include "threads.hpp"

namespace dragoman {
namespace {

const ParallelFor kOnThreads = on_threads;

constexpr int64_t kMostNumbers = 1 << 20;  // of anything that is counted here

// The attribute "how": one of
//   "convolution width length slots has_silu has_bias"
//   "heads corrects key_heads heads key value lowest highest has_skips"
//   "channels width numbers"
//   "gates width"
struct How {
    std::string text, kind;
    Convolution convolution{};
    HeadStates heads{};
    ChannelStates channels{};
    GatedStates gates{};
    bool has_bias = false, has_skips = false;

    std::vector<int64_t> rows;     // the widths of inputs that are rows of tokens
    std::vector<int64_t> kept;     // the shape of what a block keeps, in numbers
    std::vector<int64_t> results;  // the shape of a token's
    int64_t constants = 0;         // how many numbers there are of them
};

void complete(How& how) {
    if (how.kind == "convolution") {
        const Convolution& said = how.convolution;
        how.rows = {said.width};
        how.kept = {said.slots, said.width};
        how.results = {1, said.width};
        how.constants = said.width * (said.length + how.has_bias);
    } else if (how.kind == "heads") {
        const HeadStates& said = how.heads;
        how.rows = {said.width(), said.heads};
        if (said.corrects) how.rows.push_back(said.heads);
        how.kept = {said.heads, said.key, said.value};
        how.results = {said.heads, said.value};
        how.constants = said.heads * (2 + how.has_skips);
    } else if (how.kind == "channels") {
        const ChannelStates& said = how.channels;
        how.rows = {said.width, said.width, said.numbers, said.numbers};
        how.kept = {said.numbers, said.width};
        how.results = {1, said.width};
        how.constants = said.width * (said.numbers + 2);
    } else {
        how.rows = {how.gates.width, how.gates.width, how.gates.width};
        how.kept = {1, how.gates.width};
        how.results = {1, how.gates.width};
        how.constants = how.gates.width;
    }
}

How read(const std::string& text) {
    How how{};
    how.text = text;
    std::istringstream words(text);
    words.imbue(std::locale::classic());
    std::vector<int64_t> counts;
    words >> how.kind;
    if (how.kind == "convolution") {
        Convolution& said = how.convolution;
        words >> said.width >> said.length >> said.slots >> said.has_silu >> how.has_bias;
        counts = {said.width, said.length, said.slots};
        const bool reaches = said.slots <= kSlots && (said.slots == kSlots || said.slots >= said.reach());
        counts.push_back(reaches ? 1 : 0);
    } else if (how.kind == "heads") {
        HeadStates& said = how.heads;
        words >> said.corrects >> said.key_heads >> said.heads >> said.key >> said.value >> said.lowest >> said.highest;
        words >> how.has_skips;
        counts = {said.key_heads, said.heads, said.key, said.value};
        if (said.key_heads > 0 && said.heads % said.key_heads) counts.push_back(0);
    } else if (how.kind == "channels") {
        words >> how.channels.width >> how.channels.numbers;
        counts = {how.channels.width, how.channels.numbers};
    } else if (how.kind == "gates") {
        words >> how.gates.width;
        counts = {how.gates.width};
    } else {
        counts = {0};
    }
    bool is_valid = static_cast<bool>(words);
    for (int64_t count : counts) is_valid = is_valid && count > 0 && count <= kMostNumbers;
    OPENVINO_ASSERT(is_valid, "a recurrence cannot be '", text, "'");
    complete(how);
    return how;
}

}  // namespace

// Of T tokens in S rows: rows of tokens f32 [T, ..., width], as many as the kind has; what blocks keep u8 [blocks, ..., bytes of the last
// of its lengths]; past i32 [S], begins i32 [S + 1], blocks i32 [n], block begins i32 [S + 1]; constants f32, behind each other in the order of
// recurrence.hpp: f32 [T, 1, width] or [T, heads, value]. What blocks keep is written.
class RecurrenceOperation : public ov::op::Op {
public:
    OPENVINO_OP("Recurrence", "dragoman");
    RecurrenceOperation() = default;
    RecurrenceOperation(const ov::OutputVector& inputs, std::shared_ptr<const How> how) : Op(inputs), how_(std::move(how)) {}

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        std::string text = how_->text;
        visitor.on_attribute("how", text);
        if (text != how_->text) how_ = std::make_shared<How>(read(text));
        return true;
    }
    bool has_evaluate() const override { return true; }

    void validate_and_infer_types() override {
        const size_t num_rows = how_->rows.size();
        NODE_VALIDATION_CHECK(this, get_input_size() == num_rows + 6, get_input_size(), " inputs");
        for (size_t i = 0; i < num_rows; ++i) {
            const ov::PartialShape& shape = get_input_partial_shape(i);
            const bool fits = get_input_element_type(i) == ov::element::f32 && shape.rank().is_static() && shape.size() > 1 &&
                              shape[shape.size() - 1].compatible(how_->rows[i]);
            NODE_VALIDATION_CHECK(this, fits, "rows ", i, " are ", get_input_element_type(i), shape, ", not f32 of width ",
                                  how_->rows[i]);
        }
        ov::PartialShape kept = {-1};
        for (int64_t length : how_->kept) kept.push_back(length);
        kept[kept.size() - 1] = how_->kept.back() * static_cast<int64_t>(sizeof(float));
        check(num_rows, ov::element::u8, kept);
        for (size_t i = num_rows + 1; i < num_rows + 5; ++i) check(i, ov::element::i32, {-1});
        check(num_rows + 5, ov::element::f32, {how_->constants});
        ov::PartialShape results = {get_input_partial_shape(0)[0]};
        for (int64_t length : how_->results) results.push_back(length);
        set_output_type(0, ov::element::f32, results);
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto copy = std::make_shared<RecurrenceOperation>(inputs, how_);
        copy->constructor_validate_and_infer_types();
        return copy;
    }

    bool evaluate(ov::TensorVector& results, const ov::TensorVector& inputs) const override {
        const size_t num_rows = how_->rows.size();
        const auto count = [&](size_t index) { return static_cast<int64_t>(inputs[index].get_shape()[0]); };
        StateTables tables{};
        tables.num_tokens = count(0);
        tables.num_blocks = count(num_rows);
        tables.num_rows = count(num_rows + 1);
        tables.num_table_blocks = count(num_rows + 3);
        bool fits = count(num_rows + 2) == tables.num_rows + 1 && count(num_rows + 4) == tables.num_rows + 1;
        for (size_t i = 0; i < num_rows; ++i)
            fits = fits && static_cast<int64_t>(inputs[i].get_size()) == tables.num_tokens * how_->rows[i];
        OPENVINO_ASSERT(fits, "inputs of a recurrence do not fit each other");
        ov::Shape shape = {static_cast<size_t>(tables.num_tokens)};
        for (int64_t length : how_->results) shape.push_back(static_cast<size_t>(length));
        results[0].set_shape(shape);
        if (tables.num_tokens == 0) return true;
        tables.past = inputs[num_rows + 1].data<const int32_t>();
        tables.begins = inputs[num_rows + 2].data<const int32_t>();
        tables.blocks = inputs[num_rows + 3].data<const int32_t>();
        tables.block_begins = inputs[num_rows + 4].data<const int32_t>();
        const char* fault = fault_of(tables);
        OPENVINO_ASSERT(fault == nullptr, "a recurrence: ", fault);
        auto* kept = reinterpret_cast<float*>(const_cast<uint8_t*>(inputs[num_rows].data<const uint8_t>()));
        run(tables, inputs, kept, inputs[num_rows + 5].data<const float>(), results[0].data<float>());
        return true;
    }

private:
    void run(const StateTables& tables, const ov::TensorVector& inputs, float* kept, const float* constants, float* y) const {
        const RecurrenceKernels& with = recurrence_kernels();
        const auto rows = [&](size_t index) { return inputs[index].data<const float>(); };
        if (how_->kind == "convolution") {
            Convolution how = how_->convolution;
            how.taps = constants;
            how.bias = how_->has_bias ? constants + how.width * how.length : nullptr;
            convolve(with, how, tables, rows(0), kept, y, kOnThreads);
        } else if (how_->kind == "heads") {
            HeadStates how = how_->heads;
            how.rates = constants;
            how.biases = constants + how.heads;
            how.skips = how_->has_skips ? constants + 2 * how.heads : nullptr;
            run_heads(with, how, tables, {rows(0), rows(1), how.corrects ? rows(2) : nullptr}, kept, y, kOnThreads);
        } else if (how_->kind == "channels") {
            ChannelStates how = how_->channels;
            how.rates = constants;
            how.biases = constants + how.width * how.numbers;
            how.skips = how.biases + how.width;
            run_channels(with, how, tables, {rows(0), rows(1), rows(2), rows(3)}, kept, y, kOnThreads);
        } else {
            GatedStates how = how_->gates;
            how.rates = constants;
            run_gates(with, how, tables, {rows(0), rows(1), rows(2)}, kept, y, kOnThreads);
        }
    }

    void check(size_t index, const ov::element::Type& type, const ov::PartialShape& shape) const {
        NODE_VALIDATION_CHECK(this, get_input_element_type(index) == type && get_input_partial_shape(index).compatible(shape),
                              "input ", index, " is ", get_input_element_type(index), get_input_partial_shape(index), ", not ",
                              type, shape);
    }

    std::shared_ptr<const How> how_ = std::make_shared<How>();
};

std::shared_ptr<ov::Extension> recurrence_extension() { return std::make_shared<ov::OpExtension<RecurrenceOperation>>(); }

}  // namespace dragoman
