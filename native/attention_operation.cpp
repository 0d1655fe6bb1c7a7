// The graph's operation for attention over block tables.
//
// Does: check inputs and attributes, and hand pointers to the kernels. Does not: compute.
#include "attention_operation.hpp"

#include <locale>
#include <memory>
#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/op/op.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "layer_words.hpp"
#include "threads.hpp"

namespace dragoman {
namespace {

const ParallelFor kOnThreads = on_threads;

constexpr const char* kTypes[] = {"f32", "bf16", "f16", "u8"};

}  // namespace

AttentionHow read_attention(const std::string& text) {
    AttentionHow how{};
    how.text = text;
    Attention& said = how.attention;
    std::istringstream words(text);
    words.imbue(std::locale::classic());
    std::string type;
    words >> said.heads >> said.kv_heads >> said.head >> said.value >> said.scale >> said.cap >> said.window >> type;
    words >> how.has_sinks >> how.has_slopes >> how.has_types;
    int32_t index = 0;
    while (index < static_cast<int32_t>(CacheType::count) && type != kTypes[index]) ++index;
    said.type = static_cast<CacheType>(index);
    const bool is_valid = words && said.type != CacheType::count && said.kv_heads > 0 && said.heads > 0 &&
                          said.heads % said.kv_heads == 0 && said.head > 0 && said.head <= kMostNumbers && said.value > 0 &&
                          said.value <= kMostNumbers && said.window >= 0;
    OPENVINO_ASSERT(is_valid, "attention cannot be '", text, "'");
    return how;
}

Attention AttentionHow::with(Vectors& numbers) const {
    Attention how = attention;
    how.sinks = numbers.take(has_sinks ? how.heads : 0);
    how.slopes = numbers.take(has_slopes ? how.heads : 0);
    return how;
}

// Of T tokens in S rows: q f32 [T, heads * head], k f32 [T, kv heads * head], v f32 [T, kv heads * value], key and value caches
// u8 [blocks, kv heads, bytes], positions i32 or i64 [T], past i32 [S], begins i32 [S + 1], blocks i32 [n], block begins i32 [S + 1], numbers
// f32 (sinks, then slopes), then types i32 [T] if there are any: f32 [T, heads * value]. The caches are written.
class AttentionOperation : public ov::op::Op {
public:
    OPENVINO_OP("Attention", "dragoman");
    AttentionOperation() = default;
    AttentionOperation(const ov::OutputVector& inputs, std::shared_ptr<const AttentionHow> how)
        : Op(inputs), how_(std::move(how)) {}

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        std::string text = how_->text;
        visitor.on_attribute("how", text);
        if (text != how_->text) how_ = std::make_shared<AttentionHow>(read_attention(text));
        return true;
    }
    bool has_evaluate() const override { return true; }

    void validate_and_infer_types() override {
        NODE_VALIDATION_CHECK(this, get_input_size() == (how_->has_types ? 12 : 11), get_input_size(), " inputs");
        const Attention& how = how_->attention;
        const int64_t widths[] = {how.heads * how.head, how.kv_heads * how.head, how.kv_heads * how.value};
        for (size_t i = 0; i < 3; ++i) check(i, ov::element::f32, {-1, widths[i]});
        check(3, ov::element::u8, {-1, how.kv_heads, how.key_bytes()});
        check(4, ov::element::u8, {-1, how.kv_heads, how.value_bytes()});
        // The plugin makes i32 of i64.
        check(5, get_input_element_type(5) == ov::element::i64 ? ov::element::i64 : ov::element::i32, {-1});
        for (size_t i = 6; i < 10; ++i) check(i, ov::element::i32, {-1});
        check(10, ov::element::f32, {how.heads * (how_->has_sinks + how_->has_slopes)});
        if (how_->has_types) check(11, ov::element::i32, {-1});
        set_output_type(0, ov::element::f32, {get_input_partial_shape(0)[0], how.heads * how.value});
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto copy = std::make_shared<AttentionOperation>(inputs, how_);
        copy->constructor_validate_and_infer_types();
        return copy;
    }

    bool evaluate(ov::TensorVector& results, const ov::TensorVector& inputs) const override {
        Vectors numbers(inputs[10]);
        const Attention how = how_->with(numbers);
        const auto count = [&](size_t index) { return static_cast<int64_t>(inputs[index].get_shape()[0]); };
        AttentionStep step{};
        step.num_tokens = count(0);
        step.num_rows = count(6);
        const auto rows = static_cast<size_t>(step.num_rows);
        OPENVINO_ASSERT(count(1) == step.num_tokens && count(2) == step.num_tokens && count(5) == step.num_tokens &&
                            (!how_->has_types || count(11) == step.num_tokens) && inputs[7].get_size() == rows + 1 &&
                            inputs[9].get_size() == rows + 1 && count(3) == count(4),
                        "inputs of attention do not fit each other");
        results[0].set_shape({static_cast<size_t>(step.num_tokens), static_cast<size_t>(how.heads * how.value)});
        if (step.num_tokens == 0) return true;
        step.q = inputs[0].data<const float>();
        step.k = inputs[1].data<const float>();
        step.v = inputs[2].data<const float>();
        step.key_cache = const_cast<uint8_t*>(inputs[3].data<const uint8_t>());
        step.value_cache = const_cast<uint8_t*>(inputs[4].data<const uint8_t>());
        step.num_blocks = count(3);
        std::vector<int32_t> narrow;
        if (inputs[5].get_element_type() == ov::element::i64) {
            const auto* wide = inputs[5].data<const int64_t>();
            narrow.assign(wide, wide + step.num_tokens);
        }
        step.positions = narrow.empty() ? inputs[5].data<const int32_t>() : narrow.data();
        step.past = inputs[6].data<const int32_t>();
        step.begins = inputs[7].data<const int32_t>();
        step.blocks = inputs[8].data<const int32_t>();
        step.num_table_blocks = count(8);
        step.block_begins = inputs[9].data<const int32_t>();
        step.types = how_->has_types ? inputs[11].data<const int32_t>() : nullptr;
        step.y = results[0].data<float>();
        const char* fault = fault_of(how, step);
        OPENVINO_ASSERT(fault == nullptr, "attention: ", fault);
        attend(how, step, kOnThreads);
        return true;
    }

private:
    void check(size_t index, const ov::element::Type& type, const ov::PartialShape& shape) const {
        NODE_VALIDATION_CHECK(this, get_input_element_type(index) == type && get_input_partial_shape(index).compatible(shape),
                              "input ", index, " is ", get_input_element_type(index), get_input_partial_shape(index), ", not ",
                              type, shape);
    }

    std::shared_ptr<const AttentionHow> how_ = std::make_shared<AttentionHow>();
};

std::shared_ptr<ov::Extension> attention_extension() { return std::make_shared<ov::OpExtension<AttentionOperation>>(); }

}  // namespace dragoman
