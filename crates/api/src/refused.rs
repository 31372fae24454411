//! Refusals on record: one audit entry per minute for each key and code, with the number of refusals (SE-9). Requests with an unknown key are
//! counted, and one of them every ten seconds is logged.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    extract::{Request, State},
    http::StatusCode,
    middleware::Next,
    response::Response,
};
use serde_json::json;
use waybill_core::{id::ProjectId, metric};
use waybill_kernel::{audit, work::Actor};

use crate::{Api, problem::Code};

/// How often refusals are written.
pub(crate) const EVERY: Duration = Duration::from_secs(60);
/// Time between two log lines about unknown keys.
const LOGGED: Duration = Duration::from_secs(10);

/// The caller of a request, once it is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asker(Arc<OnceLock<(ProjectId, Actor)>>);

impl Asker {
    pub(crate) fn is(&self, project_id: ProjectId, actor: Actor) {
        let _ = self.0.set((project_id, actor));
    }
}

/// Refusals that are not written yet.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    counted: Mutex<HashMap<(ProjectId, String, &'static str), Counted>>,
    /// When an unknown key was last logged, and how many came since.
    unknown: Mutex<Option<(Instant, u64)>>,
}

#[derive(Debug, Default)]
struct Counted {
    n: u64,
    /// The address of the last one.
    address: Option<IpAddr>,
}

impl Refused {
    fn count(&self, asker: &Asker, code: &'static str) {
        let Some((project_id, actor)) = asker.0.get() else { return };
        self.add(*project_id, actor.clone(), code, 1);
    }

    fn add(&self, project_id: ProjectId, Actor { name, address }: Actor, code: &'static str, n: u64) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = counted.entry((project_id, name, code)).or_default();
        counted.n += n;
        counted.address = address;
    }

    fn unknown(&self) {
        metrics::counter!(metric::REFUSED, "why" => "unauthorized").increment(1);
        let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *unknown {
            Some((at, n)) if at.elapsed() < LOGGED => *n += 1,
            before => {
                let more = before.map_or(0, |(_, n)| n);
                *before = Some((Instant::now(), 0));
                tracing::warn!(
                    more,
                    "refused a request without a valid API key, and `more` others since the last such line"
                );
            }
        }
    }

    /// Writes the refusals since the last time. What cannot be written is retried the next time.
    pub(crate) async fn write(&self, api: &Api) {
        let counted = std::mem::take(&mut *self.counted.lock().unwrap_or_else(PoisonError::into_inner));
        for ((project_id, name, code), Counted { n, address }) in counted {
            let actor = Actor { name, address };
            let written = async {
                let mut work = api.kernel.begin_as(project_id, &actor).await?;
                audit::record(&mut work, &actor.name, audit::REFUSED, code, &json!({ "n": n })).await?;
                work.commit().await
            };
            if let Err(error) = written.await {
                tracing::warn!(%error, "refused requests could not be recorded in the audit: trying again later");
                self.add(project_id, actor, code, n);
            }
        }
    }
}

/// Writes refusals periodically, until the server ends.
pub(crate) async fn keep(api: Arc<Api>) {
    let every = api.config.refusals_every;
    while tokio::time::timeout(every, api.ended()).await.is_err() {
        api.refused.write(&api).await;
    }
}

/// Counts a request that was refused, by its error code.
pub(crate) async fn note(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    let asker = Asker::default();
    request.extensions_mut().insert(asker.clone());
    let response = next.run(request).await;
    match response.extensions().get::<Code>() {
        Some(_) if response.status() == StatusCode::UNAUTHORIZED => api.refused.unknown(),
        Some(Code(code)) if response.status().is_client_error() => api.refused.count(&asker, code),
        _ => {}
    }
    response
}
