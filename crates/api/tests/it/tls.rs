//! TLS, with a certificate made for these tests alone.

use std::{path::Path, time::Duration};

use reqwest::{Certificate, Client};
use tokio::{io::AsyncWriteExt, net::TcpListener, net::TcpStream, sync::oneshot};
use waybill_api::{Config, Tls};
use waybill_testkit::fresh_db;

#[tokio::test]
async fn it_speaks_tls_and_one_who_does_not_greet_holds_up_nobody() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/tls"));
    let tls = Tls::read(&folder.join("certificate.pem"), &folder.join("key.pem")).unwrap();
    let t = fresh_db().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (end, ended) = oneshot::channel::<()>();
    let ended = async { ended.await.unwrap_or_default() };
    let config = Config { tls: Some(tls), ..Config::default() };
    let serving = tokio::spawn(waybill_api::serve(listener, t.kernel.clone(), config, ended, Duration::from_secs(1)));
    let mut silent = TcpStream::connect(address).await.unwrap();
    silent.write_all(b"GET").await.unwrap();
    let known = Certificate::from_pem(&std::fs::read(folder.join("certificate.pem")).unwrap()).unwrap();
    let client = Client::builder().no_proxy().tls_certs_only([known]).build().unwrap();
    let answer = client.get(format!("https://localhost:{}/ready", address.port())).send().await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "{\"status\":\"ready\"}");
    let plain =
        client.get(format!("http://localhost:{}/ready", address.port())).timeout(Duration::from_secs(12)).send().await;
    assert!(plain.is_err(), "{plain:?}");
    end.send(()).unwrap();
    serving.await.unwrap().unwrap();
    let wrong = Tls::read(&folder.join("key.pem"), &folder.join("key.pem"));
    assert!(wrong.unwrap_err().to_string().contains("key.pem"));
}
