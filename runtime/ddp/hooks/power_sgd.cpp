#include <algorithm>
#include <map>

#include "common/error.h"
#include "runtime/archive.h"
#include "runtime/ddp/flat_bucket.h"
#include "runtime/ddp/hooks/compression.h"

namespace lockstep {
namespace {

comm::ReduceOptions average() {
  return {.op = comm::ReduceOp::average};
}

// A compressed gradient and its two factors.
struct Matrix {
  std::string name;        // of the parameter
  torch::Tensor gradient;  // n × m, a view of the bucket
  torch::Tensor p;         // n × r, a view of the memory that is sent
  torch::Tensor q;         // m × r, likewise
  bool warm;               // q is the previous step's
};

// The state between two steps by the parameters' names, for checkpoints and for another layout of buckets.
struct Remembered {
  c10::Dict<std::string, torch::Tensor> errors;  // of the gradients as they are without gradients_scaled()
  c10::Dict<std::string, torch::Tensor> qs;
};

// The state of a bucket between steps.
class BucketState {
 public:
  BucketState(GradBucket& bucket, comm::Communicator& communicator, const PowerSgdOptions& options,
              const Remembered& remembered, double scale)
      : communicator_(communicator),
        options_(options),
        names_(bucket.names()),
        gradients_(bucket.gradients()),
        buffer_(bucket.buffer()) {
    // The QR decomposition needs float or double.
    const auto type = buffer_.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
    const auto like = torch::TensorOptions().dtype(type).device(buffer_.device());
    std::vector<torch::Tensor> ps;
    std::vector<torch::Tensor> qs;
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
      const torch::Tensor& gradient = gradients_[i];
      if (!worth_compressing(gradient)) {
        uncompressed_.push_back(gradient);
        continue;
      }
      matrices_.push_back(
          {.name = names_.at(i), .gradient = as_matrix(gradient), .p = {}, .q = {}, .warm = false});
      const auto n = matrices_.back().gradient.size(0);
      const auto m = matrices_.back().gradient.size(1);
      ps.push_back(torch::empty({n, rank_of(n, m)}, like));
      qs.push_back(torch::empty({m, rank_of(n, m)}, like));
    }
    if (!matrices_.empty()) {
      p_ = std::make_unique<ddp::FlatBucket>(communicator, "PowerSGD's P", ps);
      q_ = std::make_unique<ddp::FlatBucket>(communicator, "PowerSGD's Q", qs);
      for (std::size_t i = 0; i < matrices_.size(); ++i) {
        matrices_[i].p = p_->view(i);
        matrices_[i].q = q_->view(i);
      }
    }
    if (!uncompressed_.empty())
      uncompressed_flat_ =
          std::make_unique<ddp::FlatBucket>(communicator, "gradients beside PowerSGD", uncompressed_);
    restore(remembered, scale);
  }

  // `scale`: of the gradients now.
  void remember(Remembered& into, double scale) const {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; error_.defined() && i < gradients_.size(); ++i)
      into.errors.insert_or_assign(names_.at(i), error_of(gradients_[i]) / scale);
    for (const Matrix& matrix : matrices_)
      if (matrix.warm) into.qs.insert_or_assign(matrix.name, matrix.q.clone());
  }

  void scale_error(double factor) {
    const torch::NoGradGuard no_grad;
    if (error_.defined()) error_.mul_(factor);
  }

  // The decompressed result was not used: it stays part of the error.
  void keep_result_as_error() {
    const torch::NoGradGuard no_grad;
    if (error_.defined()) error_.add_(buffer_);
  }

  // The first stage: P = M Q, and the uncompressed gradients.
  CommFuture start(std::int64_t iteration) {
    const torch::NoGradGuard no_grad;
    if (options_.use_error_feedback) {
      if (error_.defined()) buffer_.add_(error_);
      error_ = buffer_.clone();
    }
    std::vector<comm::WorkHandle> works;
    for (std::size_t i = 0; i < uncompressed_.size(); ++i)
      uncompressed_flat_->view(i).copy_(uncompressed_[i]);
    if (uncompressed_flat_) works.push_back(reduce(*uncompressed_flat_));
    if (!matrices_.empty()) {
      for (auto& [name, gradient, p, q, warm] : matrices_) {
        if (!options_.warm_start || !warm) q.copy_(random_like(q, name, iteration));
        q.nan_to_num_(0, 0, 0);  // after a step with infinite gradients; the ranks have equal values
        orthogonalise(q);
        p.copy_(torch::matmul(gradient.to(p.scalar_type()), q));
        warm = true;
      }
      works.push_back(reduce(*p_));
    }
    return {std::move(works), [this] { return project(); }};
  }

 private:
  void restore(const Remembered& from, double scale) {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
      const auto found = from.errors.find(names_.at(i));
      if (found == from.errors.end() || found->value().numel() != error_elements(gradients_[i])) continue;
      if (!error_.defined()) error_ = torch::zeros_like(buffer_);
      error_of(gradients_[i]).copy_(found->value()).mul_(scale);
    }
    for (Matrix& matrix : matrices_) {
      const auto found = from.qs.find(matrix.name);
      matrix.warm = found != from.qs.end() && found->value().sizes() == matrix.q.sizes();
      if (matrix.warm) matrix.q.copy_(found->value());
    }
  }

  // The same on all ranks, and whatever the layout of buckets is.
  torch::Tensor random_like(const torch::Tensor& q, const std::string& name, std::int64_t iteration) const {
    std::uint64_t seed =
        options_.random_seed + 0x9e3779b97f4a7c15U * static_cast<std::uint64_t>(iteration + 1);
    for (const unsigned char letter : name) seed = (seed ^ letter) * 0x100000001b3U;
    const auto generator = at::detail::createCPUGenerator(seed);
    return torch::randn(q.sizes(), generator, q.scalar_type());
  }

  std::int64_t error_elements(const torch::Tensor& gradient) const {
    return static_cast<std::int64_t>(gradient.nbytes()) / static_cast<std::int64_t>(buffer_.element_size());
  }

  // The part of the error that is the gradient's, in one dimension.
  torch::Tensor error_of(const torch::Tensor& gradient) const {
    const auto bytes = static_cast<const std::byte*>(gradient.data_ptr()) -
                       static_cast<const std::byte*>(buffer_.data_ptr());
    return error_.narrow(0, bytes / static_cast<std::int64_t>(buffer_.element_size()),
                         error_elements(gradient));
  }

  static torch::Tensor as_matrix(const torch::Tensor& gradient) {
    // A view, whatever the strides: the first dimension against the others.
    return gradient.dim() == 2 ? gradient : gradient.view({gradient.size(0), -1});
  }

  bool worth_compressing(const torch::Tensor& gradient) const {
    if (gradient.dim() < 2 || gradient.numel() == 0 || gradient.is_complex()) return false;
    if (gradient.dim() > 2 && !gradient.is_contiguous()) return false;
    const auto n = gradient.size(0);
    const auto m = gradient.numel() / n;
    const auto compressed = static_cast<double>((n + m) * rank_of(n, m));
    return compressed * options_.min_compression_rate < static_cast<double>(gradient.numel());
  }

  std::int64_t rank_of(std::int64_t n, std::int64_t m) const {
    return std::min({n, m, options_.matrix_approximation_rank});
  }

  // By Householder: orthonormal even if columns depend on each other, as in gradients of few samples.
  static void orthogonalise(torch::Tensor& matrix) {
    matrix.copy_(std::get<0>(at::linalg_qr(matrix, "reduced")));
  }

  comm::WorkHandle reduce(ddp::FlatBucket& flat) {
    auto options = average();
    options.keep = flat.memory();
    return communicator_.all_reduce(flat.buffer(), flat.label(), std::move(options));
  }

  // The second stage: Q = Mᵀ P, with P orthonormal.
  CommFuture project() {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < uncompressed_.size(); ++i)
      uncompressed_[i].copy_(uncompressed_flat_->view(i));
    if (matrices_.empty()) return remember_error();
    for (auto& [name, gradient, p, q, warm] : matrices_) {
      orthogonalise(p);
      q.copy_(torch::matmul(gradient.to(p.scalar_type()).t(), p));
    }
    return {{reduce(*q_)}, [this] { return decompress(); }};
  }

  // The third stage: M ≈ P Qᵀ.
  CommFuture decompress() {
    const torch::NoGradGuard no_grad;
    for (auto& [name, gradient, p, q, warm] : matrices_) gradient.copy_(torch::matmul(p, q.t()));
    return remember_error();
  }

  CommFuture remember_error() {
    const torch::NoGradGuard no_grad;
    if (!options_.use_error_feedback) return {};
    error_.sub_(buffer_);
    error_.nan_to_num_(0, 0, 0);  // infinite gradients must not reach later steps
    // Gradients that were sent uncompressed have no error.
    for (const auto& gradient : uncompressed_) error_of(gradient).zero_();
    return {};
  }

  comm::Communicator& communicator_;
  const PowerSgdOptions& options_;
  std::vector<std::string> names_;
  std::vector<torch::Tensor> gradients_;
  torch::Tensor buffer_;
  std::vector<Matrix> matrices_;
  std::vector<torch::Tensor> uncompressed_;
  std::unique_ptr<ddp::FlatBucket> p_;
  std::unique_ptr<ddp::FlatBucket> q_;
  std::unique_ptr<ddp::FlatBucket> uncompressed_flat_;
  torch::Tensor error_;  // this rank's
};

class PowerSgdHook : public CommHook {
 public:
  explicit PowerSgdHook(const PowerSgdOptions& options) : options_(options) {}

  CommFuture start(GradBucket& bucket, comm::Communicator& communicator) override {
    const std::int64_t iteration = iteration_;
    if (bucket.is_last()) ++iteration_;
    if (iteration < options_.start_power_sgd_iter)
      return {{communicator.all_reduce(bucket.memory(), "gradients", average())}, {}};
    auto found = buckets_.find(bucket.index());
    if (found == buckets_.end()) {
      auto state = std::make_unique<BucketState>(bucket, communicator, options_, remembered_, scale_);
      for (const std::string& name : bucket.names()) {
        (void)remembered_.errors.erase(name);
        (void)remembered_.qs.erase(name);
      }
      found = buckets_.emplace(bucket.index(), std::move(state)).first;
    }
    return found->second->start(iteration);
  }

  void buckets_changed() override {
    for (const auto& [index, bucket] : buckets_) bucket->remember(remembered_, scale_);
    buckets_.clear();
  }

  void result_dropped(GradBucket& bucket) override {
    const auto found = buckets_.find(bucket.index());
    if (found != buckets_.end()) found->second->keep_result_as_error();
  }

  void gradients_scaled(double factor) override {
    scale_ *= factor;
    for (auto& [index, bucket] : buckets_) bucket->scale_error(factor);
  }

  void save(torch::serialize::OutputArchive& archive) const override {
    Remembered all{remembered_.errors.copy(), remembered_.qs.copy()};
    for (const auto& [index, bucket] : buckets_) bucket->remember(all, scale_);
    archive.write("iteration", iteration_);
    archive.write("errors", all.errors);
    archive.write("qs", all.qs);
  }

  void load(torch::serialize::InputArchive& archive) override {
    buckets_.clear();
    iteration_ = value_in(archive, "iteration").toInt();
    remembered_.errors =
        c10::impl::toTypedDict<std::string, torch::Tensor>(value_in(archive, "errors").toGenericDict());
    remembered_.qs =
        c10::impl::toTypedDict<std::string, torch::Tensor>(value_in(archive, "qs").toGenericDict());
  }

 private:
  const PowerSgdOptions options_;
  std::int64_t iteration_ = 0;
  double scale_ = 1;  // all factors that gradients_scaled() has got: powers of two
  std::map<std::size_t, std::unique_ptr<BucketState>> buckets_;
  Remembered remembered_;  // of parameters that are in none of these buckets yet
};

}  // namespace

std::shared_ptr<CommHook> power_sgd_hook(const PowerSgdOptions& options) {
  if (options.matrix_approximation_rank < 1 || options.start_power_sgd_iter < 0) {
    fail_usage(
        "PowerSGD: matrix_approximation_rank ({}) must be at least 1, and start_power_sgd_iter ({}) at least 0",
        options.matrix_approximation_rank, options.start_power_sgd_iter);
  }
  return std::make_shared<PowerSgdHook>(options);
}

}  // namespace lockstep
