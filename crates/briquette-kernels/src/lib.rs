//! int8, int4 and sparse matrix products as burn operations.
