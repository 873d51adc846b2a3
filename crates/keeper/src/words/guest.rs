//! A guest, as a message.
//!
//! Owns: the form of that.
//! Not here: what is done with it (`process`).

use super::{
    DESCRIPTORS_MAX, Packet, Request, Sent, WordError, kind, read_eye, read_place, write_eye,
};
use crate::known::GuestParts;
use overspill_guest::{Channel, Vpn};
use rustix::fd::{AsFd, OwnedFd};

/// The order of its descriptors is that of the fields.
pub(super) fn write_guest(number: u64, guest: &GuestParts) -> Result<Sent<'_>, WordError> {
    let [own, staging, gate] = guest.own.each_ref().map(|place| [place.start.0, place.end.0]);
    let words = [&[number][..], &write_eye(&guest.eye), &own, &staging, &gate].concat();
    let mut descriptors = vec![
        guest.process.as_fd(),
        guest.agent.as_fd(),
        guest.eye.as_fd(),
        guest.pagemap.as_fd(),
        guest.maps.as_fd(),
        guest.smaps.as_fd(),
        guest.statm.as_fd(),
        guest.channel.as_fd(),
        guest.memory.as_fd(),
    ];
    descriptors.extend(guest.letters.iter().flatten().map(AsFd::as_fd));
    Ok((Packet::new(kind::ADD, &words).with_line(&guest.name), descriptors))
}

pub(super) fn read_guest(packet: &Packet, mut fds: Vec<OwnedFd>) -> Result<Request, WordError> {
    let letters = match fds.len() {
        DESCRIPTORS_MAX => {
            let letters = fds.split_off(DESCRIPTORS_MAX - 2);
            Some(packet.exactly(letters)?)
        }
        _ => None,
    };
    let [process, agent, eye, pagemap, maps, smaps, statm, channel, memory] =
        packet.exactly(fds)?;
    let gate = match &letters {
        Some(_) => read_place(packet, 10)?,
        None => Vpn(0)..Vpn(0),
    };
    let own = [read_place(packet, 6)?, read_place(packet, 8)?, gate];
    let eye = read_eye(packet, eye, Some(Vpn(own[1].end.0 - 1)))?;
    let guest = GuestParts {
        name: packet.text()?,
        process,
        agent,
        eye,
        pagemap,
        maps,
        smaps,
        statm,
        channel: Channel::from(channel),
        memory,
        own,
        letters,
        needed: Vec::new(),
    };
    Ok(Request::Add { number: packet.words[0], guest: Box::new(guest) })
}
