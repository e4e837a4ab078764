// environment.h - who this process is among the ranks, from the variables its launcher set.
//
//               tarn-run, torchrun           mpirun (Open MPI)             srun (Slurm)
//   rank, size  RANK, WORLD_SIZE             OMPI_COMM_WORLD_RANK, _SIZE   SLURM_PROCID,
//                                                                          SLURM_STEP_NUM_TASKS
//   on a host   LOCAL_RANK,                  OMPI_COMM_WORLD_LOCAL_RANK,   SLURM_LOCALID,
//               LOCAL_WORLD_SIZE             _LOCAL_SIZE SLURM_STEP_TASKS_PER_NODE
//   address     MASTER_ADDR                  MASTER_ADDR, or 127.0.0.1     first host of
//                                            where one host holds all      SLURM_STEP_NODELIST
//   port        MASTER_PORT                  from PMIX_NAMESPACE           from the job's number
//
// They are tried in this order; with none of them the world is one process. MASTER_ADDR and
// MASTER_PORT win wherever they are set.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace tarn::dist {

struct Environment {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  ///< among the ranks of this host
  std::string host = "127.0.0.1";      ///< where rank 0's store is reached
  int port = 0;                        ///< 0: not needed (a world of one)
  int start = 0;                       ///< how often the launcher has started the job anew
  std::string launcher = "none";       ///< "RANK", "Open MPI", "Slurm" or "none"
};

using Lookup = std::function<std::optional<std::string>(const char* name)>;

/// Reads it. Throws ValueError that names the variable if a set is partial, a value is no number,
/// or values contradict each other.
Environment read_environment(const Lookup& lookup);
/// From this process's own environment.
Environment read_environment();

/// The number that the launcher gave this process, by the variable that read_environment() would
/// take: a subgroup numbers its ranks anew. `rank` where there is none, or no number.
int launched_rank(int rank);

/// The first host of Slurm's short form: "node[03-05,9],gpu1" -> "node03".
std::string first_slurm_host(const std::string& list);
/// The number for one node in Slurm's short form: "2(x3),1", node 3 -> 1. Throws ValueError.
int slurm_tasks_on_node(const std::string& text, int node);

}  // namespace tarn::dist
