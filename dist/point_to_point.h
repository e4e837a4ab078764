// point_to_point.h - send and recv over a channel.
#pragma once

#include <memory>

#include "tarn/dist/channel_group.h"

namespace tarn::dist {

/// Starts a send or receive at once, in the calling thread. The Work's end waits for it.
WorkPtr start_point_to_point(std::shared_ptr<Link> link, Collective c);

}  // namespace tarn::dist
