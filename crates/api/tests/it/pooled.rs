//! The API and a worker behind a pooler in transaction mode, which gives each transaction whichever connection to the server is free.

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use waybill_api::Config;
use waybill_context::framework::Framework;
use waybill_core::{
    id::ProjectId,
    key::{ApiKey, Bounds, Scope},
};
use waybill_kernel::{
    key, project, resource,
    work::{self, Kernel},
};
use waybill_testkit::{
    fresh_db,
    pooler::{self, PgBouncer, Pooling},
};
use waybill_tool::secret::Secrets;
use waybill_worker::{
    collect::Collector,
    model::Models,
    serve::{self, Worker},
};

use crate::{House, profile};

const PROJECTS: usize = 6;
const TURNS: usize = 5;

/// One of several projects, and its admin's key.
struct Tenant {
    slug: String,
    key: String,
}

impl House {
    async fn tenant(&self, n: usize) -> Tenant {
        let (slug, key) = (format!("tenant-{n}"), ApiKey::mint("test"));
        let mut work = self.kernel.begin(ProjectId::new()).await.unwrap();
        project::create(&mut work, &slug).await.unwrap();
        resource::apply(&mut work, &[serde_json::from_value(profile("echo", "llm")).unwrap()]).await.unwrap();
        key::create(&mut work, &key, &"admin".parse().unwrap(), Scope::Admin, &Bounds::default(), None).await.unwrap();
        work.commit().await.unwrap();
        Tenant { slug, key: key.expose().to_owned() }
    }

    async fn asks(&self, tenant: &Tenant, method: Method, path: &str, body: Option<Value>) -> (u16, Value) {
        let path = format!("/v1/projects/{}{path}", tenant.slug);
        let (status, answer) = self.ask(method, &path, Some(&tenant.key), body).await;
        (status.as_u16(), answer)
    }

    /// Runs turns of one project, one after the other, and returns their ids.
    async fn runs(&self, tenant: &Tenant) -> Vec<String> {
        let mut turns = Vec::new();
        for n in 0..TURNS {
            let said = format!("{} asks {n}", tenant.slug);
            let start = json!({ "profile_name": "echo", "instruction": said });
            let (status, ended) = self.asks(tenant, Method::POST, "/turns?wait_seconds=30", Some(start)).await;
            assert_eq!(status, 200, "{ended}");
            assert_eq!(ended["turn"]["deliverable"], format!("You said {said}"), "{ended}");
            turns.push(ended["agent_turn_id"].as_str().unwrap().to_owned());
        }
        turns
    }
}

/// SE-2: turns of several projects at once, from start to end, over two connections to the server. Each project sees its own rows and no other's, and
/// nothing is left on the connections.
#[tokio::test]
async fn turns_run_behind_a_pooler_of_transactions() {
    let program = pooler::program();
    if std::env::var_os("DATABASE_URL").is_some() || !pooler::can_track(&program) {
        eprintln!(
            "skipped: {} is older than 1.21, or the server is not our own; .ci/pooler runs it",
            program.display()
        );
        return;
    }
    let mut t = fresh_db().await;
    let pooling = Pooling { mode: "transaction", user: "waybill_service", size: 2, tracks: true };
    let bouncer = PgBouncer::start(&t, &pooling).await;
    let connect = async || Kernel::connect(&work::Config::new(bouncer.url.clone())).await.unwrap();
    t.kernel = connect().await;
    let house = House::open_on(t, Config::default()).await;
    let tenants = join_all((0..PROJECTS).map(|n| house.tenant(n))).await;

    let models = Models::new(Vec::new(), Secrets::new(None, []));
    let at_work = connect().await.on(house.kernel.bus().clone());
    let worker = Worker::new(at_work, models, Collector::new(Framework::builtin()));
    let over = async {
        let turns = join_all(tenants.iter().map(|tenant| house.runs(tenant))).await;
        for (n, tenant) in tenants.iter().enumerate() {
            let (_, listed) = house.asks(tenant, Method::GET, "/turns", None).await;
            assert_eq!(listed["items"].as_array().unwrap().len(), TURNS, "{listed}");
            let others = &turns[(n + 1) % PROJECTS][0];
            let (status, answer) = house.asks(tenant, Method::GET, &format!("/turns/{others}"), None).await;
            assert_eq!(status, 404, "{answer}");
        }
    };
    worker.serve(&serve::Config::new("llm".parse().unwrap()), over).await;
    assert_eq!(bouncer.left_behind().await, Vec::<String>::new());
}
