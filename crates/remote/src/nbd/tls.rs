//! Encrypted and authenticated connections.
//!
//! Owns: whom we trust, and who we say we are.
//! Invariants: a server's certificate must be for the host that the user named, and come from
//! somebody we were told to trust. There is no way to leave that out.
//! Not here: the protocol, which is rustls's. Secrets shared in advance (TLS-PSK), which it does
//! not have.

use super::Failure;
use super::socket::{Socket, Stream};
use crate::{AUTHORITIES, CERTIFICATE, KEY};
use overspill_device::spec::{Endpoint, Tls};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

/// How to authenticate a server.
#[derive(Clone, Debug)]
pub(super) struct Credentials {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Credentials {
    /// Reads them.
    pub(super) fn load(tls: &Tls, server: &Endpoint) -> Result<Self, Failure> {
        let host = match server {
            Endpoint::Tcp { host, .. } => host,
            Endpoint::Unix(_) => "localhost",
        };
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| refused(format!("`{host}` cannot be in a certificate")))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(refused)?
            .with_root_certificates(roots(tls)?);
        let config = match identity(tls)? {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| refused(format!("{CERTIFICATE} or {KEY}: {error}")))?,
        };
        Ok(Self { config: Arc::new(config), name })
    }

    /// Starts TLS on a socket, to the end of its handshake.
    pub(super) fn start(&self, mut socket: Socket) -> Result<Stream, Failure> {
        let session = ClientConnection::new(self.config.clone(), self.name.clone());
        let mut session = session.map_err(refused)?;
        while session.is_handshaking() {
            session.complete_io(&mut socket).map_err(|error| failed(&error))?;
        }
        Ok(Stream::Tls(socket, Box::new(session)))
    }
}

fn refused(why: impl std::fmt::Display) -> Failure {
    Failure::Refused(format!("no TLS: {why}"))
}

/// What TLS refuses it will refuse again.
fn failed(error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::InvalidData => refused(error),
        _ => Failure::Broken(format!("no TLS: {error}")),
    }
}

fn roots(tls: &Tls) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    match tls {
        Tls::System => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Tls::Directory(directory) => {
            for certificate in certificates(&directory.join(AUTHORITIES))? {
                let added = roots.add(certificate);
                added.map_err(|error| refused(format!("{AUTHORITIES}: {error}")))?;
            }
        }
    }
    if roots.is_empty() {
        return Err(refused("there is no authority to trust; name a directory with tls=DIR"));
    }
    Ok(roots)
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Who we are, if there is a certificate for that.
fn identity(tls: &Tls) -> Result<Option<Identity>, Failure> {
    let Tls::Directory(directory) = tls else { return Ok(None) };
    let (certificate, key) = (directory.join(CERTIFICATE), directory.join(KEY));
    if !certificate.exists() {
        return Ok(None);
    }
    let parsed = PrivateKeyDer::from_pem_file(&key).map_err(|error| unreadable(&key, &error))?;
    Ok(Some((certificates(&certificate)?, parsed)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    all.map_err(|error: pem::Error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &pem::Error) -> Failure {
    refused(format!("cannot read {}: {error}", path.display()))
}
