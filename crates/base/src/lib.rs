// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What several of Bifold's crates need and none owns: reads with a limit ([`bounded`]), files that are
//! written as a whole ([`whole`]), tables in Markdown ([`markdown`]), the version of a result
//! ([`mod@version`]), and an error with its causes ([`with_causes`]).

pub mod bounded;
pub mod markdown;
pub mod version;
pub mod whole;

pub use version::version;

use std::error::Error;

/// An error and its causes on one line, such as `cannot read x: No such file or directory (os error 2)`.
pub fn with_causes(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_follow_their_error() {
        let alone = std::io::Error::other("no space");
        assert_eq!(with_causes(&alone), "no space");
        #[derive(Debug)]
        struct Outer(std::io::Error);
        impl std::fmt::Display for Outer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("cannot write x")
            }
        }
        impl Error for Outer {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        assert_eq!(with_causes(&Outer(alone)), "cannot write x: no space");
    }
}
