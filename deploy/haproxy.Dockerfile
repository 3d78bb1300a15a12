# HAProxy from Debian, on the base that Tenure's own image stands on, so that nothing more is downloaded.
# Any other HAProxy 2.8 or newer does as well: mount haproxy.cfg into it.
FROM python:3.13-slim
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends haproxy \
 && rm -rf /var/lib/apt/lists/*
USER haproxy
# Finish the streams that run, take no new ones.
STOPSIGNAL SIGUSR1
EXPOSE 8700
ENTRYPOINT ["haproxy", "-db", "-f", "/etc/haproxy/haproxy.cfg"]
