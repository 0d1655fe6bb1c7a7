// The graph's operation for layers that follow each other.
//
// Does: check inputs and attributes, and hand pointers to the kernels. Does not: compute. A node costs tens of microseconds whatever it
// computes, and an input of a node two: as one, all layers cost what one costs.
#include <memory>
#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "attention_operation.hpp"
#include "layer_words.hpp"
#include "layers.hpp"
#include "on_matrices.hpp"

namespace dragoman {
namespace {

const ParallelFor kOnThreads = on_threads;

constexpr size_t kMatrices = 7;  // of a layer: queries, keys, values, output, gate, up, down
constexpr size_t kTables = 3;    // of a kind: past, blocks, block begins
constexpr size_t kFixed = 4;     // inputs before caches

// "tables angles|before|attention|after|activation": the numbers of the layer's tables and angles, then the words of the operations
// that it consists of.
struct OneLayer {
    size_t tables = 0, angles = 0;
    Before before;
    AttentionHow attention;
    After after;
    NamedGating activation;
};

// "kinds angles has_rows has_types;layer;...": how many tables and angles there are, and which inputs.
struct AllLayers {
    size_t kinds = 0, angles = 0;
    bool has_rows = false, has_types = false;
    std::vector<OneLayer> layers;

    size_t caches() const { return kFixed; }
    size_t tables() const { return caches() + 2 * layers.size(); }
    size_t first_angles() const { return tables() + kTables * kinds; }
    size_t rows() const { return first_angles() + 2 * angles; }
    size_t types() const { return rows() + has_rows; }
    size_t inputs() const { return types() + has_types; }
};

std::istringstream words_of(const std::string& text) {
    std::istringstream words(text);
    words.imbue(std::locale::classic());
    return words;
}

std::istream& operator>>(std::istream& all, AllLayers& said) {
    std::string text;
    std::getline(all, text, ';');
    std::istringstream head = words_of(text);
    bool is_right = static_cast<bool>(head >> said.kinds >> said.angles >> said.has_rows >> said.has_types);
    while (is_right && std::getline(all, text, ';')) {
        std::istringstream parts(text);
        std::string places, before, attention, after, activation;
        is_right = std::getline(parts, places, '|') && std::getline(parts, before, '|') && std::getline(parts, attention, '|') &&
                   std::getline(parts, after, '|') && std::getline(parts, activation, '|');
        if (!is_right) break;
        OneLayer layer;
        std::istringstream places_words = words_of(places), before_words = words_of(before), after_words = words_of(after);
        is_right = places_words >> layer.tables >> layer.angles && before_words >> layer.before && after_words >> layer.after &&
                   layer.tables < said.kinds;
        if (!is_right) break;
        layer.attention = read_attention(attention);
        layer.activation = read_gating(activation);
        said.layers.push_back(std::move(layer));
    }
    all.clear(is_right ? std::ios::eofbit : std::ios::failbit);
    return all;
}

}  // namespace

// x [T, 1, hidden] f32, numbers f32 (of each layer those of its operations, in their order), positions i32 or i64 [T], begins i32 [S + 1];
// of each layer its key and value caches; past, blocks and block begins of each kind; cos and sin of each angles; rows i32 or i64 [R]
// that are kept of the last layer, then types, if there are any: [T or R, 1, hidden] f32. See the operations of these parts.
class LayersOperation : public OnMatrices {
public:
    OPENVINO_OP("Layers", "dragoman");
    LayersOperation() = default;
    LayersOperation(const ov::OutputVector& inputs, const LayersOperation& other) : OnMatrices(inputs, other), how_(other.how_) {}

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        how_.visit(visitor);
        return OnMatrices::visit_attributes(visitor);
    }

    void validate_and_infer_types() override {
        const AllLayers& how = *how_.operator->();
        check_counts(matrices().size() == kMatrices * how.layers.size() && get_input_size() == how.inputs());
        for (size_t i = 0; i < how.layers.size(); ++i) check_layer(i);
        const auto i32 = ov::element::i32, f32 = ov::element::f32;
        check(1, f32, {-1});
        check_indices(2);
        check(3, i32, {-1});
        for (size_t i = how.tables(); i < how.first_angles(); ++i) check(i, i32, {-1});
        for (size_t i = how.first_angles(); i < how.rows(); ++i) {
            keep_f32(get_input_node_shared_ptr(i));
            NODE_VALIDATION_CHECK(this, get_input_element_type(i) == f32, "angles are ", get_input_element_type(i), ", not f32");
        }
        if (how.has_rows) check_indices(how.rows());
        if (how.has_types) check(how.types(), i32, {-1});
        ov::PartialShape shape = shape_of_results(matrices()[0], matrices()[0].columns);
        NODE_VALIDATION_CHECK(this, shape.size() == 3 && shape[1].compatible(1), "rows are ", shape);
        if (how.has_rows) shape[0] = get_input_partial_shape(how.rows())[0];
        set_output_type(0, f32, shape);
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto copy = std::make_shared<LayersOperation>(inputs, *this);
        copy->constructor_validate_and_infer_types();
        return copy;
    }

    bool evaluate(ov::TensorVector& results, const ov::TensorVector& inputs) const override {
        const AllLayers& how = *how_.operator->();
        const Input x = rows_in(inputs[0]);
        const auto size = [&](size_t index) { return static_cast<int64_t>(inputs[index].get_size()); };
        const auto i32 = [&](size_t index) { return size(index) ? inputs[index].data<const int32_t>() : nullptr; };
        AttentionStep step{};
        step.num_tokens = x.count;
        step.num_rows = size(3) - 1;
        OPENVINO_ASSERT(size(2) == x.count && size(3) > 0 && (!how.has_types || size(how.types()) == x.count),
                        "inputs of layers do not fit each other");
        std::vector<int64_t> kept;
        if (how.has_rows) {
            kept = numbers_in<int64_t>(inputs[how.rows()]);
            for (int64_t row : kept) OPENVINO_ASSERT(row >= 0 && row < x.count, "row ", row, " of ", x.count, " is kept");
        }
        const int64_t hidden = matrices()[0].columns, num_results = how.has_rows ? size(how.rows()) : x.count;
        results[0].set_shape({static_cast<size_t>(num_results), 1, static_cast<size_t>(hidden)});
        if (x.count == 0) return true;
        const std::vector<int32_t> positions = numbers_in<int32_t>(inputs[2]);
        step.positions = positions.data();
        step.begins = i32(3);
        step.types = how.has_types ? i32(how.types()) : nullptr;
        Vectors numbers(inputs[1]);
        std::vector<Layer> layers(how.layers.size());
        for (size_t i = 0; i < layers.size(); ++i) {
            const OneLayer& said = how.layers[i];
            const Matrix* of_layer = matrices().data() + kMatrices * i;
            Layer& layer = layers[i];
            layer.norm = said.before.with(numbers, of_layer, layer.qkv, layer.heads);
            if (const int64_t turned = said.before.turned()) {
                const size_t cos = how.first_angles() + 2 * said.angles;
                OPENVINO_ASSERT(size(cos) == x.count * turned && size(cos + 1) == x.count * turned, "angles are ",
                                inputs[cos].get_shape(), " and ", inputs[cos + 1].get_shape(), ", not of ", x.count, " rows");
                layer.angles = {inputs[cos].data<const float>(), inputs[cos + 1].data<const float>()};
            }
            layer.attention = said.attention.with(numbers);
            layer.step = step;
            const size_t table = how.tables() + kTables * said.tables, cache = how.caches() + 2 * i;
            OPENVINO_ASSERT(size(table) == step.num_rows && size(table + 2) == step.num_rows + 1 &&
                                inputs[cache].get_shape()[0] == inputs[cache + 1].get_shape()[0],
                            "inputs of layers do not fit each other");
            layer.step.past = i32(table);
            layer.step.blocks = i32(table + 1);
            layer.step.num_table_blocks = size(table + 1);
            layer.step.block_begins = i32(table + 2);
            layer.step.key_cache = const_cast<uint8_t*>(inputs[cache].data<const uint8_t>());
            layer.step.value_cache = const_cast<uint8_t*>(inputs[cache + 1].data<const uint8_t>());
            layer.step.num_blocks = static_cast<int64_t>(inputs[cache].get_shape()[0]);
            if (!said.attention.has_types) layer.step.types = nullptr;
            const char* fault = fault_of(layer.attention, layer.step);
            OPENVINO_ASSERT(fault == nullptr, "attention: ", fault);
            layer.rest = said.after.with(numbers, of_layer + 3, said.activation);
        }
        numbers.finish();
        float* y = num_results ? results[0].data<float>() : nullptr;  // keys and values are written all the same
        run_layers(layers, x.data, how.has_rows ? &kept : nullptr, y, kOnThreads);
        return true;
    }

private:
    template <class T>
    static std::vector<T> numbers_in(const ov::Tensor& tensor) {
        const size_t count = tensor.get_size();
        std::vector<T> to(count);
        if (count == 0) return to;
        if (tensor.get_element_type() == ov::element::i64) {
            const auto* from = tensor.data<const int64_t>();
            for (size_t i = 0; i < count; ++i) to[i] = static_cast<T>(from[i]);
        } else {
            to.assign(tensor.data<const int32_t>(), tensor.data<const int32_t>() + count);
        }
        return to;
    }

    void check_layer(size_t index) const {
        const OneLayer& said = how_->layers[index];
        const Matrix* of_layer = matrices().data() + kMatrices * index;
        const Attention& attention = said.attention.attention;
        const int64_t widths[] = {attention.heads * attention.head, attention.kv_heads * attention.head,
                                  attention.kv_heads * attention.value};
        std::string fault = said.before.fault(of_layer, 3);
        if (fault.empty()) fault = said.after.fault(of_layer + 3);
        NODE_VALIDATION_CHECK(this, fault.empty(), fault);
        for (size_t i = 0; i < 3; ++i)
            NODE_VALIDATION_CHECK(this, of_layer[i].outputs == widths[i] && of_layer[i].columns == matrices()[0].columns,
                                  "queries, keys or values do not fit attention");
        NODE_VALIDATION_CHECK(
            this, of_layer[3].columns == attention.heads * attention.value && of_layer[3].outputs == matrices()[0].columns,
            "the output does not fit attention, or the rows");
        NODE_VALIDATION_CHECK(
            this, (!said.before.turned() || said.angles < how_->angles) && (!said.attention.has_types || how_->has_types),
            "a layer reads angles or types that are no inputs");
        const size_t cache = how_->caches() + 2 * index;
        check(cache, ov::element::u8, {-1, attention.kv_heads, attention.key_bytes()});
        check(cache + 1, ov::element::u8, {-1, attention.kv_heads, attention.value_bytes()});
    }

    void check(size_t index, const ov::element::Type& type, const ov::PartialShape& shape) const {
        NODE_VALIDATION_CHECK(this, get_input_element_type(index) == type && get_input_partial_shape(index).compatible(shape),
                              "input ", index, " is ", get_input_element_type(index), get_input_partial_shape(index), ", not ",
                              type, shape);
    }

    // The plugin makes i32 of i64.
    void check_indices(size_t index) const {
        check(index, get_input_element_type(index) == ov::element::i64 ? ov::element::i64 : ov::element::i32, {-1});
    }

    How<AllLayers> how_;
};

std::shared_ptr<ov::Extension> layers_extension() { return std::make_shared<ov::OpExtension<LayersOperation>>(); }

}  // namespace dragoman
