#pragma once

#include "tandem/device.h"

namespace tandem::cuda {

/// DeviceProperties::clusters of a device, as the driver counts them for a kernel that takes a
/// whole multiprocessor. Makes the device's context if there is none.
decltype(DeviceProperties::clusters) count_clusters(int device);

}  // namespace tandem::cuda
