//! TLS, with a certificate and a key.

use std::{io, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
    server::TlsStream,
};

/// A client that does not complete the TLS handshake within this time is disconnected.
const GREETING: Duration = Duration::from_secs(10);

/// A certificate, and its key.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the TLS file {file} cannot be used: {why}")]
pub struct TlsError {
    file: String,
    why: String,
}

impl Tls {
    /// Reads PEM files.
    pub fn read(certificate: &Path, key: &Path) -> Result<Tls, TlsError> {
        let wrong = |file: &Path, why: String| TlsError { file: file.display().to_string(), why };
        let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect)
            .map_err(|error| wrong(certificate, error.to_string()));
        let read = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, error.to_string()))?;
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain?, read);
        let mut config = config.map_err(|error| wrong(certificate, error.to_string()))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Tls(TlsAcceptor::from(Arc::new(config))))
    }
}

/// Connections that have completed the TLS handshake. A slow one does not hold up the others.
pub(crate) struct Greeted {
    address: SocketAddr,
    greeted: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
}

impl Greeted {
    pub(crate) fn new(listener: TcpListener, Tls(acceptor): Tls) -> io::Result<Greeted> {
        let address = listener.local_addr()?;
        let (send, greeted) = mpsc::channel(64);
        tokio::spawn(async move {
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = send.closed() => return,
                };
                let Ok((stream, peer)) = accepted else {
                    // Most likely out of file descriptors, which passes.
                    sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let (acceptor, send) = (acceptor.clone(), send.clone());
                tokio::spawn(async move {
                    if let Ok(Ok(stream)) = timeout(GREETING, acceptor.accept(stream)).await {
                        let _ = send.send((stream, peer)).await;
                    }
                });
            }
        });
        Ok(Greeted { address, greeted })
    }
}

impl axum::serve::Listener for Greeted {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.greeted.recv().await {
            Some(greeted) => greeted,
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}
