#include "runtime/comm/nccl/communicator.h"

#include "common/error.h"
#include "runtime/comm/failure.h"
#include "runtime/comm/mpi/session.h"
#include "runtime/comm/nccl/session.h"
#include "runtime/comm/nccl/watchdog.h"

namespace lockstep::comm::nccl {
namespace {

ncclDataType_t type_of(DataType type) {
  switch (type) {
    case DataType::f32:
      return ncclFloat32;
    case DataType::f64:
      return ncclFloat64;
    case DataType::bf16:
      return ncclBfloat16;
    case DataType::f16:
      return ncclFloat16;
    case DataType::i32:
      return ncclInt32;
    case DataType::i64:
      return ncclInt64;
    case DataType::u8:
      return ncclUint8;
  }
  fail("NCCL does not have this element type");
}

bool is_floating(DataType type) {
  return type == DataType::f32 || type == DataType::f64 || type == DataType::bf16 || type == DataType::f16;
}

// The NCCL reduction for `options`.
ncclRedOp_t reduction_of(const ReduceOptions& options, DataType type) {
  if (options.scale != nullptr) fail_usage("NCCL reduces without a scale: multiply the elements before");
  switch (options.op) {
    case ReduceOp::sum:
      return ncclSum;
    case ReduceOp::average:
      if (!is_floating(type)) fail_usage("{} elements cannot be averaged", name_of(type));
      return ncclAvg;
    case ReduceOp::max:
      return ncclMax;
    case ReduceOp::min:
      return ncclMin;
    case ReduceOp::bit_or:
      fail_usage("NCCL does not support bit_or: use max, or reduce in host memory");
    case ReduceOp::sum_or_max:
      fail_usage("NCCL does not support sum_or_max: reduce in host memory");
  }
  fail("NCCL does not have this reduction");
}

class NcclCommunicator : public Communicator {
 public:
  /// `device` must be current, as after the Session's start. Frees `world` at its end.
  NcclCommunicator(MPI_Comm world, RankInfo place, int device, std::unique_ptr<Session> session)
      : Communicator(std::move(place)),
        world_(world),
        device_(device),
        session_(std::move(session)),
        own_stream_(make_stream()),
        stream_(own_stream_.get()),
        asked_(make_event()),
        scratch_(nccl::allocate(device, sizeof(std::int32_t))),
        watchdog_(std::make_unique<Watchdog>(*session_, mutex_, device)) {}

  ~NcclCommunicator() override {
    watchdog_.reset();
    session_.reset();
    if (world_ != MPI_COMM_NULL) MPI_Comm_free(&world_);
  }

  std::string_view name() const override { return "nccl"; }
  int device() const override { return device_; }
  void set_stream_source(const std::function<void*()>& source) override { source_ = source; }
  void set_stream(void* stream) override { stream_ = static_cast<cudaStream_t>(stream); }

  WorkHandle all_reduce(Buffer buffer, std::string_view label, ReduceOptions options) override {
    return launch(describe("all_reduce", label, buffer.bytes()), options, [&](cudaStream_t stream) {
      settle(ncclAllReduce(buffer.data, buffer.data, buffer.count, type_of(buffer.type),
                           reduction_of(options, buffer.type), session_->get(), stream),
             "ncclAllReduce");
    });
  }

  WorkHandle broadcast(Buffer buffer, int root, std::string_view label) override {
    return launch(describe("broadcast", label, buffer.bytes()), {}, [&](cudaStream_t stream) {
      settle(ncclBroadcast(buffer.data, buffer.data, buffer.count, type_of(buffer.type), root,
                           session_->get(), stream),
             "ncclBroadcast");
    });
  }

  WorkHandle all_gather(Buffer mine, void* all, std::string_view label) override {
    return launch(describe("all_gather", label, mine.bytes()), {}, [&](cudaStream_t stream) {
      settle(ncclAllGather(mine.data, all, mine.count, type_of(mine.type), session_->get(), stream),
             "ncclAllGather");
    });
  }

  WorkHandle reduce_scatter(void* all, Buffer mine, std::string_view label, ReduceOptions options) override {
    return launch(describe("reduce_scatter", label, mine.bytes()), options, [&](cudaStream_t stream) {
      settle(ncclReduceScatter(all, mine.data, mine.count, type_of(mine.type),
                               reduction_of(options, mine.type), session_->get(), stream),
             "ncclReduceScatter");
    });
  }

  WorkHandle exchange(std::span<const PeerMessage> sends, std::span<const PeerMessage> receives,
                      std::string_view label) override {
    check_peers(sends);
    check_peers(receives);
    return launch(describe("exchange", label, 0), {}, [&](cudaStream_t stream) {
      settle(ncclGroupStart(), "ncclGroupStart");
      // An error here is returned by ncclGroupEnd, which must be called in any case.
      for (const PeerMessage& send : sends)
        ncclSend(send.data, send.bytes, ncclUint8, send.peer, session_->get(), stream);
      for (const PeerMessage& receive : receives)
        ncclRecv(receive.data, receive.bytes, ncclUint8, receive.peer, session_->get(), stream);
      settle(ncclGroupEnd(), "ncclGroupEnd");
    });
  }

  WorkHandle barrier(std::string_view label) override;
  std::unique_ptr<Communicator> split(int color, std::string_view name) override;

  std::shared_ptr<void> allocate(std::size_t bytes) override { return nccl::allocate(device_, bytes); }

 private:
  void settle(ncclResult_t result, const char* call) { session_->settle(result, call); }

  // Queues the work of `body` on the stream, after the work that is queued on the caller's stream.
  template <typename Body>
  std::shared_ptr<DeviceOperation> launch(std::string name, const ReduceOptions& options, const Body& body) {
    use_device(device_);
    auto operation =
        std::make_shared<DeviceOperation>(std::move(name), device_, source_, options.then, options.keep);
    {
      const std::scoped_lock lock(mutex_);
      check(cudaEventRecord(asked_.get(), static_cast<cudaStream_t>(source_())), "cudaEventRecord");
      check(cudaStreamWaitEvent(stream_, asked_.get(), 0), "cudaStreamWaitEvent");
      operation->begin();
      try {
        body(stream_);
      } catch (const UsageError&) {
        operation->finish(std::current_exception());
        throw;
      } catch (const Error& error) {
        operation->finish(std::current_exception());
        fail("{} failed on {}: {}", operation->name(), this_rank_name(), error.what());
      }
      operation->launched(stream_);
      // Under the lock, so that the watchdog gets the operations in the stream's order.
      watchdog_->add(operation);
    }
    return operation;
  }

  MPI_Comm world_;
  int device_;
  std::function<void*()> source_ = [] { return nullptr; };
  std::mutex mutex_;  // guards the session and the order in the stream
  std::unique_ptr<Session> session_;
  Stream own_stream_;
  cudaStream_t stream_;
  Event asked_;
  std::shared_ptr<void> scratch_;
  std::unique_ptr<Watchdog> watchdog_;
};

// Its wait() blocks the thread.
class HostWork : public Work {
 public:
  explicit HostWork(std::shared_ptr<DeviceOperation> operation) : operation_(std::move(operation)) {}
  bool done() const override { return operation_->done(); }
  void wait() override { operation_->wait_here(); }
  WorkTimes times() const override { return operation_->times(); }

 private:
  std::shared_ptr<DeviceOperation> operation_;
};

WorkHandle NcclCommunicator::barrier(std::string_view label) {
  return std::make_shared<HostWork>(launch(describe("barrier", label, 0), {}, [&](cudaStream_t stream) {
    settle(ncclAllReduce(scratch_.get(), scratch_.get(), 1, ncclInt32, ncclSum, session_->get(), stream),
           "ncclAllReduce");
  }));
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color, std::string_view name) {
  const Deadline deadline(fmt::format("the split into {}", name));
  MPI_Comm part = MPI_COMM_NULL;
  RankInfo place = this->place();
  if (world_ != MPI_COMM_NULL) {
    mpi::check(MPI_Comm_split(world_, color < 0 ? MPI_UNDEFINED : color, rank(), &part), "MPI_Comm_split");
    if (part != MPI_COMM_NULL) place = mpi::find_place(part);
  }
  use_device(device_);
  std::unique_ptr<Session> session;
  {
    const std::scoped_lock lock(mutex_);
    session = session_->split(color, part, place, std::string(name));
  }
  if (!session) return nullptr;
  auto group = std::make_unique<NcclCommunicator>(part, place, device_, std::move(session));
  group->set_stream_source(source_);
  return group;
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(MPI_Comm world, const RankInfo& place, int device) {
  MPI_Comm own = MPI_COMM_NULL;
  if (world != MPI_COMM_NULL) {
    mpi::check(MPI_Comm_dup(world, &own), "MPI_Comm_dup");
    mpi::check(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  auto session = std::make_unique<Session>(own, place, device, "all ranks");
  return std::make_unique<NcclCommunicator>(own, place, device, std::move(session));
}

}  // namespace lockstep::comm::nccl
