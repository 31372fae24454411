//! Whose conversations a call may belong to, and the keys of projects that hide it.

use std::{collections::HashMap, sync::Mutex};

use serde_json::json;
use waybill_core::id::{AgentId, ProjectId};
use waybill_kernel::{project, work};

use super::{lock, queue::Call};
use crate::Api;

/// Whose conversations a call may belong to: none crosses keys, sessions, agents, providers or formats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source(String);

impl Source {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the same id for all turns of an agent, as far as it is known which agent it is.
    pub(super) fn agent_id(&self, project_id: ProjectId) -> AgentId {
        let named = format!("recorded\n{project_id}\n{}", self.0);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&blake3::hash(named.as_bytes()).as_bytes()[..16]);
        AgentId::from_bytes(bytes)
    }
}

/// Whose a call is, and where it goes.
#[derive(Clone, Debug)]
pub(super) struct Whose {
    pub(super) source: Source,
    /// In which conversations a sub-agent of it may be.
    pub(super) kin: String,
    /// The path and the query, without the credentials in it.
    pub(super) address: String,
}

#[cfg(test)]
impl Whose {
    pub(super) fn named(name: &str) -> Whose {
        Whose { source: Source(name.to_owned()), kin: "ours".to_owned(), address: String::new() }
    }
}

impl Call {
    /// Returns whose it is, and where it goes.
    pub(super) fn whose(&self) -> Whose {
        let kin = json!([self.sender.key_id, stored(self.session.as_deref())]).to_string();
        Whose { source: self.source_as(self.agent.as_deref()), kin, address: self.address.clone() }
    }

    /// Returns the source of another agent of the same key and session.
    pub(super) fn source_as(&self, agent: Option<&str>) -> Source {
        let (session, agent) = (stored(self.session.as_deref()), stored(agent));
        // By its id: another key may get the same name later.
        Source(json!([self.sender.key_id, session, agent, self.provider, self.adapter]).to_string())
    }
}

fn stored(said: Option<&str>) -> String {
    waybill_core::json::text(said.unwrap_or_default()).into_owned()
}

/// The seal keys of projects, which never change.
#[derive(Debug, Default)]
pub(super) struct Keys(Mutex<HashMap<ProjectId, [u8; 32]>>);

impl Keys {
    pub(super) async fn of(&self, api: &Api, project_id: ProjectId) -> Result<[u8; 32], work::Error> {
        if let Some(key) = lock(&self.0).get(&project_id) {
            return Ok(*key);
        }
        let mut work = api.kernel.begin(project_id).await?;
        let key = project::seal_key(&mut work).await.map_err(work::Error::Db)?;
        lock(&self.0).insert(project_id, key);
        Ok(key)
    }
}
