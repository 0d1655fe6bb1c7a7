// The graph's operation on layers of experts: checks of inputs and attributes, before the kernels compute. See operations.cpp.
#include <openvino/core/op_extension.hpp>
#include <string>
#include <vector>

#include "experts.hpp"
#include "on_matrices.hpp"

namespace dragoman {
namespace {

const ParallelFor kOnThreads = on_threads;
constexpr size_t kChosen = 1, kShares = 2, kBiases = 3;

}  // namespace

// Gate, up and down, or up and down of experts without a gate, are each the packed matrices of all experts, one behind the other. x [..., columns] f32; chosen of i32 or i64 and
// shares f32, both [rows, active]; then a bias f32 [experts, outputs] of each or none: [..., outputs of down] f32.
class ExpertsOperation : public OnMatrices {
public:
    OPENVINO_OP("Experts", "dragoman");
    ExpertsOperation() = default;
    ExpertsOperation(const ov::OutputVector& inputs, const ExpertsOperation& other)
        : OnMatrices(inputs, other), gating_(other.gating_) {}

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visit_activation(visitor, gating_);
        visitor.on_attribute("experts", copies_);
        return OnMatrices::visit_attributes(visitor);
    }

    void validate_and_infer_types() override {
        NODE_VALIDATION_CHECK(this, copies_ > 0 && copies_ <= kMostExperts, copies_, " experts");
        const size_t inputs = get_input_size();
        const size_t count = matrices().size();
        check_counts((count == 2 || count == 3) && (inputs == kBiases || inputs == kBiases + count));
        const Matrix &gate = matrices()[0], &up = matrices()[count - 2], &down = matrices()[count - 1];
        NODE_VALIDATION_CHECK(this, gate.columns == up.columns && gate.outputs == up.outputs && down.columns == up.outputs,
                              "gate, up and down do not fit");
        const ov::element::Type& type = get_input_element_type(kChosen);
        NODE_VALIDATION_CHECK(this, type == ov::element::i32 || type == ov::element::i64, "chosen experts are ", type,
                              ", not i32 or i64");
        NODE_VALIDATION_CHECK(this, get_input_element_type(kShares) == ov::element::f32, "shares are ",
                              get_input_element_type(kShares), ", not f32");
        for (size_t i : {kChosen, kShares})
            NODE_VALIDATION_CHECK(this, get_input_partial_shape(i).rank().compatible(2), "chosen experts and shares are ",
                                  get_input_partial_shape(i), ", not [rows, active]");
        for (size_t i = kBiases; i < inputs; ++i) {
            const ov::PartialShape all{copies_, matrices()[i - kBiases].outputs};
            NODE_VALIDATION_CHECK(this,
                                  get_input_element_type(i) == ov::element::f32 && get_input_partial_shape(i).compatible(all),
                                  "a bias is ", get_input_element_type(i), get_input_partial_shape(i), ", not f32", all);
        }
        set_output_type(0, ov::element::f32, shape_of_results(gate, down.outputs));
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto copy = std::make_shared<ExpertsOperation>(inputs, *this);
        copy->constructor_validate_and_infer_types();
        return copy;
    }

    bool evaluate(ov::TensorVector& results, const ov::TensorVector& inputs) const override {
        const Input rows = rows_in(inputs[0]);
        const size_t last = matrices().size() - 1;
        const bool is_gated = last == 2;
        const Experts all = {
            {matrices()[0], is_gated ? matrices()[1] : Matrix{}, matrices()[last], floats_or_null(inputs, kBiases),
             is_gated ? floats_or_null(inputs, kBiases + 1) : nullptr, floats_or_null(inputs, kBiases + last), gating_},
            copies_};
        ov::Shape shape = inputs[0].get_shape();
        shape.back() = all.first.down.outputs;
        results[0].set_shape(shape);
        const ov::Shape& chosen = inputs[kChosen].get_shape();
        OPENVINO_ASSERT(
            chosen == inputs[kShares].get_shape() && chosen.size() == 2 && chosen[0] == static_cast<size_t>(rows.count),
            "chosen experts are ", chosen, " and shares ", inputs[kShares].get_shape(), " of ", rows.count, " rows");
        OPENVINO_ASSERT(chosen[1] > 0, "rows choose no experts");
        if (rows.count == 0) return true;
        const std::vector<int32_t> indices = inputs[kChosen].get_element_type() == ov::element::i64
                                                 ? checked(inputs[kChosen].data<const int64_t>(), inputs[kChosen].get_size())
                                                 : checked(inputs[kChosen].data<const int32_t>(), inputs[kChosen].get_size());
        const Choice choice = {indices.data(), inputs[kShares].data<const float>(), static_cast<int64_t>(chosen[1])};
        experts(all, choice, rows, results[0].data<float>(), all.first.down.outputs, kOnThreads);
        return true;
    }

private:
    static constexpr int64_t kMostExperts = 1 << 20;

    template <class Index>
    std::vector<int32_t> checked(const Index* indices, size_t count) const {
        std::vector<int32_t> found(count);
        for (size_t i = 0; i < count; ++i) {
            OPENVINO_ASSERT(indices[i] >= 0 && indices[i] < copies_, "expert ", indices[i], " of ", copies_);
            found[i] = static_cast<int32_t>(indices[i]);
        }
        return found;
    }

    NamedGating gating_;
};

std::shared_ptr<ov::Extension> experts_extension() { return std::make_shared<ov::OpExtension<ExpertsOperation>>(); }

}  // namespace dragoman
