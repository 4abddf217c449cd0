//! html
pub(crate) fn render(_c: &crate::Comparison) -> Result<String, crate::RenderError> { Ok(String::new()) }
