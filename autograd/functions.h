// functions.h - every recorded operation. Their unrecorded twins are in tarn::raw.
#pragma once

#include "tarn/autograd/functions_elementwise.h"
#include "tarn/autograd/functions_index.h"
#include "tarn/autograd/functions_matmul.h"
#include "tarn/autograd/functions_random.h"
#include "tarn/autograd/functions_shape.h"
