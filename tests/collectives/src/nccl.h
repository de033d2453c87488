#pragma once
#ifdef __cplusplus
extern "C" {
#endif
int ncclGetVersion(int *version);
/* Adds two vectors of floats on the current GPU; without one, the runtime's error. */
int collectivesAdd(const float *a, const float *b, float *sum, int count);
#ifdef __cplusplus
}
#endif
