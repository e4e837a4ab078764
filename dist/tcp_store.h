// tcp_store.h - TcpStore: rank 0 serves the map, everybody (rank 0 too) is a client.
//
//   TcpStore store({.host = "10.0.0.1", .port = 29500, .server = rank == 0});
//
// The server is one thread that polls all connections; a client's wait is held by the server, so a
// value arrives as soon as it is set.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "tarn/dist/socket.h"
#include "tarn/dist/store.h"

namespace tarn::dist {

class TcpStoreServer;

struct TcpStoreOptions {
  std::string host = "127.0.0.1";
  int port = 29500;     ///< 0 with server: any free one, see TcpStore::port()
  bool server = false;  ///< serve from this process: rank 0 alone
  int start = 0;        ///< of the job, by its launcher: a server of another is left alone
  Millis timeout = kStoreTimeout;  ///< until the server can be reached
  /// The server answers at once; what takes longer than this is a dead host or a stopped rank 0.
  Millis patience{5000};
};

class TcpStore final : public Store {
 public:
  /// Throws DistError if the port is in use, TimeoutError if the server cannot be reached or is, to
  /// the end, that of another start of the job, DistError if something else listens there.
  explicit TcpStore(const TcpStoreOptions& options);
  ~TcpStore() override;

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> try_get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t delta) override;
  bool erase(const std::string& key) override;
  std::optional<std::string> wait_for(const std::string& key, Millis limit) override;
  std::string describe() const override;
  int port() const { return port_; }

 private:
  struct Reply {
    bool found = false;
    std::string value;
  };
  void connect(Clock::time_point deadline);
  Reply ask(char op, const std::string& key, const std::string& value, Millis limit);

  std::string host_;
  int port_, start_;
  Millis patience_;
  std::unique_ptr<TcpStoreServer> server_;
  std::mutex turn_, mutex_;  // one question at a time on the connection
  Socket socket_;
};

}  // namespace tarn::dist
