// host_channel.h - messages between processes of one host, without the network.
//
// The ranks share a small memory segment that holds letters: "message in slot s, so many bytes at
// this address of mine". The receiver copies straight out of the sender's memory
// (process_vm_readv(2)), so each byte is moved once; a socket moves it twice, and wakes two threads
// more. Waits are futexes in the segment. A process file descriptor tells when a rank has died.
#pragma once

#include <memory>
#include <string>

#include "tarn/dist/channel.h"
#include "tarn/dist/group.h"
#include "tarn/dist/store.h"

namespace tarn::dist {

/// All ranks call it. Null, on all ranks, if they are not on one host, or may not read each other's
/// memory (other users, other containers). Throws TimeoutError that names ranks which did not come.
ChannelPtr make_host_channel(Store& store, const std::string& name, int rank, int size,
                             Millis timeout);

/// A group over it, whose own channel may be made already. Throws UnsupportedError where
/// make_host_channel gives none.
std::shared_ptr<ProcessGroup> make_host_group(std::shared_ptr<Store> store, int rank, int size,
                                              GroupOptions options = {}, ChannelPtr own = nullptr);

}  // namespace tarn::dist
