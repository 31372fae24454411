//! Errors, told whole.

/// An error with its causes, in one line.
pub fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The innermost cause; none: there is none beneath.
pub fn innermost(error: &dyn std::error::Error) -> Option<String> {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.last().map(ToString::to_string)
}
