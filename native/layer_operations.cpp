// The graph's operations on what lies before and behind attention in a layer.
//
// Does: check inputs and attributes, and hand pointers to the kernels. Does not: compute. Each has an attribute "how" of numbers with
// spaces between, and an input "numbers" f32 [n] with all vectors behind each other in the order in which they are named here.
#include <locale>
#include <memory>
#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "layer.hpp"
#include "on_matrices.hpp"

// Of libopenvino, whose headers of transformations are not in the package.
namespace ov {
void disable_conversion(const std::shared_ptr<Node>& node, const element::Type& to);
bool is_conversion_disabled(const std::shared_ptr<const Node>& node, const element::Type& to);
}  // namespace ov

namespace dragoman {
namespace {

// Has a node and what it is computed from stay f32 where the plugin computes in bf16: it knows this of positions and angles that its
// own operation reads. It asks for f16 whatever type it computes in.
void keep_f32(const std::shared_ptr<ov::Node>& node) {
    if (node->get_input_size() == 0 || ov::is_conversion_disabled(node, ov::element::f16)) return;
    ov::disable_conversion(node, ov::element::f16);
    for (const ov::Output<ov::Node>& input : node->input_values()) keep_f32(input.get_node_shared_ptr());
}

const ParallelFor kOnThreads = on_threads;

// The attribute "how" and what it says, which copies of an operation share.
template <class Said>
class How {
public:
    void visit(ov::AttributeVisitor& visitor) {
        std::string text = read_->text;
        visitor.on_attribute("how", text);
        if (text == read_->text) return;
        auto read = std::make_shared<Read>();
        read->text = text;
        std::istringstream words(text);
        words.imbue(std::locale::classic());
        words >> read->said;
        OPENVINO_ASSERT(!words.fail(), "an operation of a layer cannot be '", text, "'");
        read_ = read;
    }
    const Said* operator->() const { return &read_->said; }

private:
    struct Read {
        std::string text;
        Said said;
    };
    std::shared_ptr<const Read> read_ = std::make_shared<Read>();
};

// Hands out the vectors in an input one after the other.
class Vectors {
public:
    explicit Vectors(const ov::Tensor& tensor)
        : at_(tensor.data<const float>()), left_(static_cast<int64_t>(tensor.get_size())) {}

    // The next `size` numbers, null if there are none.
    const float* take(int64_t size) {
        OPENVINO_ASSERT(size <= left_, "there are ", left_, " numbers left, not ", size);
        const float* vector = size ? at_ : nullptr;
        at_ += size;
        left_ -= size;
        return vector;
    }
    void finish() const { OPENVINO_ASSERT(left_ == 0, left_, " numbers too many"); }

private:
    const float* at_;
    int64_t left_;
};

// A norm as attributes have it: its size, 0 = there is none, and epsilon.
struct NormSize {
    int64_t size = 0;
    float epsilon = 0;

    Norm with(Vectors& numbers) const { return {size, numbers.take(size), epsilon}; }
    bool divides(int64_t width) const { return size >= 0 && (size == 0 || width % size == 0); }
};

std::istream& operator>>(std::istream& words, NormSize& norm) { return words >> norm.size >> norm.epsilon; }

// "norm has_bias (norm head turned)...": of the rows, whether products have biases, and of each product.
struct Before {
    NormSize norm;
    bool has_bias = false;
    struct One {
        NormSize norm;
        int64_t head = 0, turned = 0;
    };
    std::vector<One> products;

    int64_t turned() const {
        for (const One& one : products)
            if (one.turned) return one.turned;
        return 0;
    }
};

std::istream& operator>>(std::istream& words, Before& before) {
    words >> before.norm >> before.has_bias;
    if (!words) return words;
    for (Before::One one; words >> one.norm >> one.head >> one.turned;) before.products.push_back(one);
    if (words.eof()) words.clear(std::ios::eofbit);  // how many there are is checked against the matrices
    return words;
}

// "scale output_bias mlp_bias output_norm norm mlp_norm"
struct After {
    float scale = 1;
    bool has_output_bias = false, has_mlp_bias = false;
    NormSize output_norm, norm, mlp_norm;
};

std::istream& operator>>(std::istream& words, After& after) {
    words >> after.scale >> after.has_output_bias >> after.has_mlp_bias;
    return words >> after.output_norm >> after.norm >> after.mlp_norm;
}

}  // namespace

// x [T, 1, columns] f32, numbers (weight of the norm; of each product its bias and its norm's weight), and where
// something is turned cos and sin f32 [T, ..., turned]: of each product [T, outputs] f32.
class NormedProductsOperation : public OnMatrices {
public:
    OPENVINO_OP("NormedProducts", "dragoman");
    NormedProductsOperation() = default;
    NormedProductsOperation(const ov::OutputVector& inputs, const NormedProductsOperation& other)
        : OnMatrices(inputs, other), how_(other.how_) {}

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        how_.visit(visitor);
        return OnMatrices::visit_attributes(visitor);
    }

    void validate_and_infer_types() override {
        const size_t count = matrices().size();
        const int64_t turned = how_->turned();
        check_counts(how_->products.size() == count && get_input_size() == (turned ? 4 : 2));
        NODE_VALIDATION_CHECK(this, get_input_element_type(1) == ov::element::f32, "numbers are ", get_input_element_type(1),
                              ", not f32");
        for (size_t i = 2; i < get_input_size(); ++i) {
            keep_f32(get_input_node_shared_ptr(i));
            const ov::PartialShape& shape = get_input_partial_shape(i);
            NODE_VALIDATION_CHECK(this,
                                  get_input_element_type(i) == ov::element::f32 && shape.rank().is_static() && shape.size() > 0 &&
                                      shape[shape.size() - 1].compatible(turned),
                                  "angles are ", get_input_element_type(i), shape, ", and ", turned, " values are turned");
        }
        set_output_size(count);
        for (size_t i = 0; i < count; ++i) {
            const Matrix& matrix = matrices()[i];
            const Before::One& one = how_->products[i];
            NODE_VALIDATION_CHECK(
                this, matrix.columns == matrices()[0].columns && (how_->norm.size == 0 || how_->norm.size == matrix.columns),
                "the norm has ", how_->norm.size, " columns, a matrix ", matrix.columns);
            NODE_VALIDATION_CHECK(
                this,
                one.norm.divides(matrix.outputs) && one.turned >= 0 && one.turned % 2 == 0 &&
                    (one.turned == 0 || (one.turned == turned && one.turned <= one.head && matrix.outputs % one.head == 0)),
                matrix.outputs, " outputs do not fit heads of ", one.head, ", of which ", one.turned,
                " are turned, or a norm of ", one.norm.size);
            const ov::PartialShape results = shape_of_results(matrix, matrix.outputs);
            NODE_VALIDATION_CHECK(this, results.size() == 3 && results[1].compatible(1), "rows are ", get_input_partial_shape(0));
            set_output_type(i, ov::element::f32, ov::PartialShape{results[0], matrix.outputs});
        }
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto copy = std::make_shared<NormedProductsOperation>(inputs, *this);
        copy->constructor_validate_and_infer_types();
        return copy;
    }

    bool evaluate(ov::TensorVector& results, const ov::TensorVector& inputs) const override {
        const Input rows = rows_in(inputs[0]);
        const size_t count = matrices().size();
        Vectors numbers(inputs[1]);
        const Norm norm = how_->norm.with(numbers);
        std::vector<Product> all;
        std::vector<Heads> heads;
        for (size_t i = 0; i < count; ++i) {
            const Before::One& one = how_->products[i];
            const int64_t outputs = matrices()[i].outputs;
            results[i].set_shape({static_cast<size_t>(rows.count), static_cast<size_t>(outputs)});
            const float* bias = numbers.take(how_->has_bias ? outputs : 0);
            all.push_back({matrices()[i], bias, rows.count ? results[i].data<float>() : nullptr, outputs});
            heads.push_back({one.norm.with(numbers), one.head, one.turned});
        }
        numbers.finish();
        Angles angles{};
        if (const int64_t turned = how_->turned(); turned && rows.count) {
            const ov::Tensor &cos = inputs[2], &sin = inputs[3];
            const size_t size = static_cast<size_t>(rows.count * turned);
            OPENVINO_ASSERT(cos.get_size() == size && sin.get_size() == size, "angles are ", cos.get_shape(), " and ",
                            sin.get_shape(), ", not of ", rows.count, " rows");
            angles = {cos.data<const float>(), sin.data<const float>()};
        }
        normed_products(norm, all.data(), heads.data(), static_cast<int>(count), angles, rows, kOnThreads);
        return true;
    }

private:
    How<Before> how_;
};

// Matrices: output, gate, up and down. x [..., columns] f32, residual f32 [..., hidden] of as many rows, numbers (biases of output, gate, up and down;
// weights of the output's norm, of the norm before the MLP and of the one behind it): [..., hidden] f32.
class OutputAndMlpOperation : public OnMatrices {
public:
    OPENVINO_OP("OutputAndMlp", "dragoman");
    OutputAndMlpOperation() = default;
    OutputAndMlpOperation(const ov::OutputVector& inputs, const OutputAndMlpOperation& other)
        : OnMatrices(inputs, other), how_(other.how_), activation_(other.activation_) {}

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        how_.visit(visitor);
        visit_activation(visitor, activation_);
        return OnMatrices::visit_attributes(visitor);
    }

    void validate_and_infer_types() override {
        check_counts(matrices().size() == 4 && get_input_size() == 3);
        const Matrix &output = matrices()[0], &gate = matrices()[1], &up = matrices()[2], &down = matrices()[3];
        const int64_t hidden = output.outputs;
        NODE_VALIDATION_CHECK(this,
                              gate.columns == hidden && up.columns == hidden && up.outputs == gate.outputs &&
                                  down.columns == gate.outputs && down.outputs == hidden,
                              "output, gate, up and down do not fit");
        for (const NormSize* norm : {&how_->output_norm, &how_->norm, &how_->mlp_norm})
            NODE_VALIDATION_CHECK(this, norm->size == 0 || norm->size == hidden, "a norm has ", norm->size, " columns, not ",
                                  hidden);
        for (size_t i : {1, 2})
            NODE_VALIDATION_CHECK(this, get_input_element_type(i) == ov::element::f32, "residual or numbers are ",
                                  get_input_element_type(i), ", not f32");
        shape_of_results(output, hidden);
        const ov::PartialShape& residual = get_input_partial_shape(1);
        NODE_VALIDATION_CHECK(
            this, residual.rank().is_static() && residual.size() > 0 && residual[residual.size() - 1].compatible(hidden),
            "the residual is ", residual, ", and a layer has ", hidden, " columns");
        set_output_type(0, ov::element::f32, residual);
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto copy = std::make_shared<OutputAndMlpOperation>(inputs, *this);
        copy->constructor_validate_and_infer_types();
        return copy;
    }

    bool evaluate(ov::TensorVector& results, const ov::TensorVector& inputs) const override {
        const Input rows = rows_in(inputs[0]);
        const int64_t hidden = matrices()[0].outputs, inner = matrices()[1].outputs;
        const ov::Tensor& residual = inputs[1];
        OPENVINO_ASSERT(residual.get_size() == static_cast<size_t>(rows.count * hidden), "the residual is ", residual.get_shape(),
                        ", and ", rows.count, " rows have ", hidden, " columns");
        Vectors numbers(inputs[2]);
        OutputAndMlp layer{};
        layer.output = matrices()[0];
        layer.output_bias = numbers.take(how_->has_output_bias ? hidden : 0);
        layer.mlp = {matrices()[1], matrices()[2], matrices()[3], nullptr, nullptr, nullptr, activation_};
        layer.mlp.gate_bias = numbers.take(how_->has_mlp_bias ? inner : 0);
        layer.mlp.up_bias = numbers.take(how_->has_mlp_bias ? inner : 0);
        layer.mlp.down_bias = numbers.take(how_->has_mlp_bias ? hidden : 0);
        layer.output_norm = how_->output_norm.with(numbers);
        layer.norm = how_->norm.with(numbers);
        layer.mlp_norm = how_->mlp_norm.with(numbers);
        layer.scale = how_->scale;
        numbers.finish();
        results[0].set_shape(residual.get_shape());
        if (rows.count) output_and_mlp(layer, rows, residual.data<const float>(), results[0].data<float>(), kOnThreads);
        return true;
    }

private:
    How<After> how_;
    NamedGating activation_;
};

std::shared_ptr<ov::Extension> normed_products_extension() {
    return std::make_shared<ov::OpExtension<NormedProductsOperation>>();
}

std::shared_ptr<ov::Extension> output_and_mlp_extension() { return std::make_shared<ov::OpExtension<OutputAndMlpOperation>>(); }

}  // namespace dragoman
