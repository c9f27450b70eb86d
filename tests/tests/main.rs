//! End to end, through the command and the public interface.
