//! A real PgBouncer in front of the database of a test.

use std::{
    env, fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use sqlx::{Connection, PgConnection, Row};
use waybill_services::{Home, postgres};

use crate::TestDb;

/// What a transaction may leave on a connection to the server, and what is held there beyond it.
const LEFT: &str = "select s.name || ' is ' || v.value
    from (values ('waybill.project'), ('waybill.actor'), ('waybill.address'), ('waybill.on_behalf_of'), ('waybill.external'),
                 ('waybill.deleting')) as s (name)
   cross join lateral (select current_setting(s.name, true) as value) v
   where v.value <> ''
   union all
  select 'an advisory lock' from pg_locks l where l.locktype = 'advisory' and l.pid = pg_backend_pid()";

/// How a pooler is to be.
#[derive(Clone, Copy, Debug)]
pub struct Pooling<'a> {
    /// `session` or `transaction`.
    pub mode: &'a str,
    /// The login of every client.
    pub user: &'a str,
    /// How many connections to the server it has at most.
    pub size: usize,
    /// Whether it is to keep track of prepared statements. Older versions than 1.21 cannot.
    pub tracks: bool,
}

/// A PgBouncer that runs until it is dropped.
#[derive(Debug)]
pub struct PgBouncer {
    child: Child,
    folder: PathBuf,
    size: usize,
    pub url: String,
}

/// Returns the PgBouncer of this machine, or the one that `WAYBILL_PGBOUNCER` names. Installs it where there is none.
pub fn program() -> PathBuf {
    if let Some(named) = env::var_os("WAYBILL_PGBOUNCER") {
        return named.into();
    }
    let known = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].map(PathBuf::from);
    known.into_iter().find(|path| path.exists()).unwrap_or_else(|| {
        postgres::install_debian("pgbouncer").expect("PgBouncer can be installed");
        "/usr/sbin/pgbouncer".into()
    })
}

/// Checks whether a PgBouncer can keep track of prepared statements: 1.21 and newer.
pub fn can_track(program: &Path) -> bool {
    let said = Command::new(program).arg("--version").output().expect("PgBouncer says its version");
    let said = String::from_utf8_lossy(&said.stdout);
    let version = said.split_whitespace().nth(1).unwrap_or_default();
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default()) >= (1, 21)
}

impl PgBouncer {
    /// Starts one. It lets every client in, so it needs a server that does so too: our own.
    pub async fn start(t: &TestDb, pooling: &Pooling<'_>) -> PgBouncer {
        let Pooling { mode, user, size, tracks } = *pooling;
        let program = program();
        let prepared = match (can_track(&program), tracks) {
            (true, true) => "max_prepared_statements = 200\n",
            (true, false) => "max_prepared_statements = 0\n",
            (false, false) => "",
            (false, true) => panic!("{} is older than 1.21", program.display()),
        };
        let folder = Home::find().expect("tests have a folder").path(&format!("pgbouncer-{}-{mode}-{user}", t.name));
        fs::create_dir_all(&folder).expect("the folder can be made");
        let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let port = free.expect("a port is free").port();
        let config = folder.join("pgbouncer.ini");
        // With `auth_type = any` every client is logged in as the user of the database line.
        let settings = format!(
            "[databases]\n{name} = host=127.0.0.1 port={server} dbname={name} user={user}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\ndefault_pool_size = {size}\n{prepared}\
             ignore_startup_parameters = extra_float_digits\n",
            name = t.name,
            server = t.server.port(),
        );
        fs::write(&config, settings).expect("the settings can be written");
        let child = postgres::as_unprivileged(&program)
            .expect("there is a user for it")
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("PgBouncer starts");
        let url = format!("postgres://{user}@127.0.0.1:{port}/{}", t.name);
        let bouncer = PgBouncer { child, folder, size, url };
        for _ in 0..200 {
            if PgConnection::connect(&bouncer.url).await.is_ok() {
                return bouncer;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("PgBouncer did not come up");
    }

    /// Returns what earlier transactions have left behind on the connections to the server: nothing, if all is well. Takes all of them at once.
    pub async fn left_behind(&self) -> Vec<String> {
        let (mut clients, mut found) = (Vec::new(), Vec::new());
        for _ in 0..self.size {
            let mut client = PgConnection::connect(&self.url).await.expect("a client can connect");
            sqlx::raw_sql("begin").execute(&mut client).await.expect("a transaction begins");
            clients.push(client);
        }
        for client in &mut clients {
            let rows = sqlx::raw_sql(LEFT).fetch_all(client).await.expect("it can be asked");
            found.extend(rows.iter().map(|row| row.get::<String, _>(0)));
        }
        found
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
