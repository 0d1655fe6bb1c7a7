"""The wire format of LMI's and TGI's requests: bodies, parameters and answers, which LMI's containers share with TGI."""
