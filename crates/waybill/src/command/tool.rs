//! `waybill tool`: makes tool manifests from OpenAPI documents and MCP servers.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Subcommand;
use serde_json::{Value, json};
use waybill_core::id::Name;
use waybill_tool::openapi;

use crate::{command::worker::Reached, connect::Place};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the operations of an OpenAPI document as tool manifests.
    ///
    /// Review them, then `waybill apply` those that you want.
    FromOpenapi {
        /// The OpenAPI document, as JSON or YAML.
        file: PathBuf,
        /// Only this operation, by its `operationId`; can be repeated. If omitted, all operations.
        #[arg(long = "operation", value_name = "ID")]
        operations: Vec<String>,
        /// URL of the server. If omitted, the server that the document names.
        #[arg(long, value_name = "URL")]
        server: Option<String>,
    },
    /// Print the tools of an MCP server as manifests. Each manifest has the hash of the tool's current description: if the server changes the tool
    /// later, calls are refused until it is applied again.
    FromMcp {
        /// The name of the server in the providers file: `mcp_server: {name: …}`.
        server: Name,
        /// Only this tool; can be repeated. If omitted, all tools.
        #[arg(long = "tool", value_name = "NAME")]
        tools: Vec<String>,
        #[command(flatten)]
        reached: Reached,
        #[command(flatten)]
        place: Place,
    },
}

pub(crate) async fn run(command: Command, as_json: bool) -> Result<ExitCode> {
    let manifests = match command {
        Command::FromOpenapi { file, operations, server } => {
            let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let document: Value = match serde_json::from_str(&text) {
                Ok(document) => document,
                Err(_) => serde_saphyr::from_str(&text)
                    .with_context(|| format!("{} is neither JSON nor YAML", file.display()))?,
            };
            let tools = openapi::tools(&document, &operations, server.as_deref());
            tools.map_err(|why| anyhow::anyhow!("{}: {why}", file.display()))?
        }
        Command::FromMcp { server, tools, reached, place } => {
            let (kernel, project_id) = place.open().await?;
            let offered = reached.read()?.tools(kernel, None).offered(project_id, &server).await;
            let offered = offered.map_err(anyhow::Error::msg)?;
            let wanted = offered.iter().filter(|offered| tools.is_empty() || tools.contains(&offered.tool));
            let manifests: Vec<Value> = wanted
                .map(|offered| {
                    let mut tool = json!({
                        "name": openapi::name(&offered.tool),
                        "description": offered.description,
                        "parameters": offered.input_schema,
                        "mcp": { "server": server, "tool": offered.tool, "schema_hash": offered.schema_hash },
                    });
                    if let Some(schema) = &offered.output_schema {
                        tool["result"] = schema.clone();
                    }
                    json!({ "tool": tool })
                })
                .collect();
            let names: Vec<&str> = offered.iter().map(|offered| offered.tool.as_str()).collect();
            ensure!(
                !manifests.is_empty(),
                "MCP server `{server}` has none of the tools {}: its tools are {}",
                tools.join(", "),
                names.join(", ")
            );
            manifests
        }
    };
    if as_json {
        crate::output::json(&manifests)?;
    } else {
        // JSON is valid YAML, so the output can be applied.
        for manifest in &manifests {
            println!("---\n{}", serde_json::to_string_pretty(manifest)?);
        }
    }
    Ok(ExitCode::SUCCESS)
}
