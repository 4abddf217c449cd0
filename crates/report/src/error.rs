// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of rendering.

/// Why a comparison could not be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenderError {
    /// JSON failed.
    #[error("cannot render JSON")]
    Json(#[from] serde_json::Error),
    /// CSV failed.
    #[error("cannot render CSV")]
    Csv(#[from] csv::Error),
    /// The HTML template failed.
    #[error("cannot render HTML")]
    Html(#[from] minijinja::Error),
    /// The flame graph failed.
    #[error("cannot draw the flame graph")]
    Graph(#[source] std::io::Error),
}
