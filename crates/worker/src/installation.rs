//! The operator's file: model providers, MCP servers, and which hosts tools may reach. No tenant can change any of it.

use std::sync::Arc;

use serde::Deserialize;
use waybill_artifact::Artifacts;
use waybill_kernel::work::Kernel;
use waybill_tool::{egress::Egress, mcp::McpServer, secret::Secrets, service::Tools};

use crate::model::{Models, Provider};

/// One document of the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Document {
    Provider(Box<Provider>),
    McpServer(Box<McpServer>),
    Egress(Egress),
}

/// Everything that the file says.
#[derive(Clone, Debug, Default)]
pub struct Installation {
    pub providers: Vec<Provider>,
    pub mcp_servers: Vec<McpServer>,
    pub egress: Egress,
    pub secrets: Arc<Secrets>,
}

impl Installation {
    /// Reads the documents of a file. Each name may occur once.
    pub fn read(documents: Vec<Document>, secrets: Secrets) -> Result<Installation, String> {
        let mut all = Installation { secrets: Arc::new(secrets), ..Installation::default() };
        let mut has_egress = false;
        for document in documents {
            match document {
                Document::Provider(new) if all.providers.iter().any(|known| known.name == new.name) => {
                    return Err(format!("provider `{}` is defined twice: use each name once", new.name));
                }
                Document::Provider(new) => {
                    let wrong = new.prices.iter().find(|(_, price)| !price.is_sound());
                    if let Some((model, _)) = wrong {
                        return Err(format!(
                            "provider `{}`: the prices of `{model}` must be numbers that are not negative",
                            new.name
                        ));
                    }
                    if new.record {
                        new.check_recorded()?;
                    }
                    all.providers.push(*new);
                }
                Document::McpServer(new) if all.mcp_servers.iter().any(|known| known.name == new.name) => {
                    return Err(format!("mcp_server `{}` is defined twice: use each name once", new.name));
                }
                Document::McpServer(new) if new.command.is_empty() == new.url.is_none() => {
                    return Err(format!(
                        "mcp_server `{}` must have either a `command` or a `url`, and not both",
                        new.name
                    ));
                }
                Document::McpServer(new) => all.mcp_servers.push(*new),
                Document::Egress(_) if has_egress => return Err("`egress` is defined twice: write it once".to_owned()),
                Document::Egress(egress) => (all.egress, has_egress) = (egress, true),
            }
        }
        Ok(all)
    }

    pub fn models(&self) -> Models {
        Models::new(self.providers.clone(), self.secrets.clone())
    }

    pub fn tools(&self, kernel: Kernel, artifacts: Option<Artifacts>) -> Tools {
        Tools::new(kernel, artifacts, self.secrets.clone(), self.egress.clone(), self.mcp_servers.clone())
    }

    /// Puts what the file says now in the place of what it said before. Calls under way end as they began.
    pub fn renew(&self, models: &Models, tools: Option<&Tools>) {
        models.replace(self.providers.clone());
        if let Some(tools) = tools {
            tools.replace(self.egress.clone(), self.mcp_servers.clone());
        }
    }
}
