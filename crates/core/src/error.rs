//! Errors with their causes.

/// Writes an error with its causes, in one line.
pub fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Returns the innermost cause; `None` if the error has no cause.
pub fn innermost(error: &dyn std::error::Error) -> Option<String> {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.last().map(ToString::to_string)
}
