// environment.cpp - who this process is among the ranks.
#include "tarn/dist/environment.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "tarn/core/error.h"

namespace tarn::dist {
namespace {

constexpr int kFirstPort = 20000, kPorts = 20000;
// A batch script has most of SLURM_* too, but only a step that srun started has a list of nodes.
constexpr const char* kSlurmStep = "SLURM_STEP_NODELIST";

// Reads variables for one launcher, so that every error says whose they are.
class Reader {
 public:
  Reader(const Lookup& lookup, std::string because)
      : lookup_(lookup), because_(std::move(because)) {}

  std::string text(const char* name) const {
    const auto value = value_of(name);
    TARN_CHECK_AS(ValueError, value, "environment: ", name, " is not set, but ", because_,
                  " is; set all of them or none");
    return *value;
  }

  int number(const char* name, int low = 0) const { return parse(name, text(name), low); }

  int number_or(const char* name, int fallback, int low = 0) const {
    const auto value = value_of(name);
    return value ? parse(name, *value, low) : fallback;
  }

  std::optional<std::string> value_of(const char* name) const {
    auto value = lookup_(name);
    TARN_CHECK_AS(ValueError, !value || !value->empty(), "environment: ", name,
                  " is empty; give it a value, or unset it");
    return value;
  }

  static int parse(const char* name, const std::string& text, int low) {
    int value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    TARN_CHECK_AS(ValueError, error == std::errc() && stop == end && value >= low,
                  "environment: ", name, " must be a number of at least ", low, "; got \"", text,
                  "\"");
    return value;
  }

 private:
  const Lookup& lookup_;
  std::string because_;
};

const char* first_set(const Lookup& lookup, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (lookup(name)) return name;
  }
  return nullptr;
}

void check_pair(const char* rank_name, int rank, const char* size_name, int size) {
  TARN_CHECK_AS(ValueError, rank < size, "environment: ", rank_name, " must be below ", size_name,
                "; got ", rank_name, "=", rank, ", ", size_name, "=", size);
}

Environment from_rank(const Lookup& lookup, const char* because) {
  const Reader read(lookup, because);
  Environment e{.launcher = "RANK"};
  e.rank = read.number("RANK");
  e.size = read.number("WORLD_SIZE", 1);
  check_pair("RANK", e.rank, "WORLD_SIZE", e.size);
  e.local_size = read.number_or("LOCAL_WORLD_SIZE", e.size, 1);
  e.local_rank = read.number_or("LOCAL_RANK", e.rank % e.local_size);
  check_pair("LOCAL_RANK", e.local_rank, "LOCAL_WORLD_SIZE", e.local_size);
  if (e.size == 1) return e;
  e.host = read.text("MASTER_ADDR");
  e.port = read.number("MASTER_PORT", 1);
  e.start = read.number_or("TORCHELASTIC_RESTART_COUNT", 0);
  // torchrun's static rendezvous keeps a store of its own on MASTER_PORT while the ranks run.
  if (lookup("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True") ++e.port;
  return e;
}

// The same port for all ranks of a job, another for another job.
int port_of(const std::string& name) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (unsigned char c : name) hash = (hash ^ c) * 16777619u;
  return kFirstPort + static_cast<int>(hash % kPorts);
}

Environment from_open_mpi(const Lookup& lookup, const char* because) {
  const Reader read(lookup, because);
  Environment e{.launcher = "Open MPI"};
  e.rank = read.number("OMPI_COMM_WORLD_RANK");
  e.size = read.number("OMPI_COMM_WORLD_SIZE", 1);
  check_pair("OMPI_COMM_WORLD_RANK", e.rank, "OMPI_COMM_WORLD_SIZE", e.size);
  e.local_rank = read.number("OMPI_COMM_WORLD_LOCAL_RANK");
  e.local_size = read.number("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
  check_pair("OMPI_COMM_WORLD_LOCAL_RANK", e.local_rank, "OMPI_COMM_WORLD_LOCAL_SIZE",
             e.local_size);
  if (e.size == 1) return e;
  const auto host = read.value_of("MASTER_ADDR");
  TARN_CHECK_AS(ValueError, host || e.local_size == e.size, "environment: mpirun spreads ", e.size,
                " ranks over several hosts; say where rank 0 is: mpirun -x MASTER_ADDR=HOST");
  if (host) e.host = *host;
  const auto port = read.value_of("MASTER_PORT");
  e.port = port ? Reader::parse("MASTER_PORT", *port, 1) : port_of(read.text("PMIX_NAMESPACE"));
  return e;
}

Environment from_slurm(const Lookup& lookup, const char* because) {
  const Reader read(lookup, because);
  Environment e{.launcher = "Slurm"};
  e.rank = read.number("SLURM_PROCID");
  const char* size = lookup("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  e.size = read.number(size, 1);
  check_pair("SLURM_PROCID", e.rank, size, e.size);
  e.local_rank = read.number("SLURM_LOCALID");
  e.local_size = slurm_tasks_on_node(read.text("SLURM_STEP_TASKS_PER_NODE"),
                                     read.number_or("SLURM_NODEID", 0));
  check_pair("SLURM_LOCALID", e.local_rank, "SLURM_STEP_TASKS_PER_NODE", e.local_size);
  if (e.size == 1) return e;
  e.host = read.value_of("MASTER_ADDR").value_or(first_slurm_host(read.text(kSlurmStep)));
  const int64_t job = read.number("SLURM_JOB_ID"), step = read.number("SLURM_STEP_ID");
  e.port =
      read.number_or("MASTER_PORT", kFirstPort + static_cast<int>((job * 16 + step) % kPorts), 1);
  return e;
}

}  // namespace

std::string first_slurm_host(const std::string& list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    // "[03-05,9]": the first number, with its zeros.
    const size_t end = list.find_first_of("-,]", i + 1);
    const size_t close = list.find(']', i);
    TARN_CHECK_AS(ValueError, close != std::string::npos,
                  "environment: SLURM_STEP_NODELIST has no ']'; got \"", list, "\"");
    host += list.substr(i + 1, end - i - 1);
    i = close;
  }
  return host;
}

int slurm_tasks_on_node(const std::string& text, int node) {
  const char* name = "SLURM_STEP_TASKS_PER_NODE";
  int first = 0;  // the node that the current entry starts with
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string entry = text.substr(at, end - at);
    const size_t times = entry.find("(x");
    const int tasks = Reader::parse(name, entry.substr(0, times), 1);
    int nodes = 1;
    if (times != std::string::npos) {
      const size_t close = entry.find(')', times);
      TARN_CHECK_AS(ValueError, close != std::string::npos, "environment: ", name,
                    " has no ')'; got \"", text, "\"");
      nodes = Reader::parse(name, entry.substr(times + 2, close - times - 2), 1);
    }
    if (node < first + nodes) return tasks;
    first += nodes;
    at = end + 1;
  }
  tarn::detail::fail<ValueError>("environment: ", name, "=\"", text, "\" has ", first,
                                 " nodes, but SLURM_NODEID is ", node);
}

Environment read_environment(const Lookup& lookup) {
  if (const char* name =
          first_set(lookup, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})) {
    return from_rank(lookup, name);
  }
  if (const char* name = first_set(lookup, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"})) {
    return from_open_mpi(lookup, name);
  }
  if (lookup(kSlurmStep)) return from_slurm(lookup, kSlurmStep);
  return {};
}

int launched_rank(int rank) {
  const char* name = "RANK";
  if (!std::getenv(name)) name = "OMPI_COMM_WORLD_RANK";
  if (!std::getenv(name) && std::getenv(kSlurmStep)) name = "SLURM_PROCID";
  const char* text = std::getenv(name);
  if (!text) return rank;
  const char* end = text + std::strlen(text);
  int value = 0;
  const auto [stop, error] = std::from_chars(text, end, value);
  return error == std::errc() && stop == end ? value : rank;
}

Environment read_environment() {
  return read_environment([](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    if (!value) return {};
    return value;
  });
}

}  // namespace tarn::dist
