/* What the accumulators of a product start from. */
#pragma once

/* What C holds, zeros, or row r of C times scale[r] (floats only: one rounding, denormals kept). */
enum cp_start { CP_FROM_C, CP_FROM_ZERO, CP_FROM_SCALED };
